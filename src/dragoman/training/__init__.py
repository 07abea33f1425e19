"""From batches to a bundle. Lightning runs the loop; what is particular to translation is here."""
