"""Models carried to other programs. Each export is verified against torch before it is written."""
