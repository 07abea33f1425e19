"""Convert a model: python scripts/export.py --model runs/zh_en --to ctranslate2

    ctranslate2   BUNDLE/ctranslate2; translate.py uses it on a CPU, where it is several times faster
    huggingface   BUNDLE/huggingface, for AutoTokenizer and AutoModelForSeq2SeqLM of transformers
    argos         BUNDLE/translate-SRC_TGT-1_0.argosmodel, for Argos Translate and LibreTranslate

Before anything is written, transformers or CTranslate2 (also for argos) must translate 100 sentences as torch does:
those of --sentences, or sentences of the phrasebook where the model reads Chinese or English; random pieces make up the
number. --push sends BUNDLE/huggingface to the Hugging Face Hub; a repository that does not exist yet is made private.
"""

import json
import sys
from pathlib import Path

from dragoman import files
from dragoman.bundle import load_info, locate
from dragoman.commands import cli
from dragoman.data.text import lines
from dragoman.errors import UserError, check_choice

FORMATS = ("ctranslate2", "huggingface", "argos")


@cli.command
def main(argv: list[str]) -> None:
    parser = cli.Parser(__doc__)
    parser.add_argument("--model", required=True, metavar="FOLDER", help="a bundle, or a run that has one")
    parser.add_argument("--to", required=True, metavar="FORMAT", help=f"one of: {', '.join(FORMATS)}")
    parser.add_argument("--quantization", default="int8", choices=("int8", "int16", "float32"), help="not huggingface")
    parser.add_argument("--sentences", metavar="FILE", help="lines that both must translate alike")
    parser.add_argument("--push", metavar="REPO", help="with --to huggingface: upload to OWNER/NAME on the hub")
    parser.add_argument("--dry-run", action="store_true", help="with --push: only show what would be sent")
    args = parser.parse_args(argv)
    check_choice("--to", args.to, FORMATS)
    if (args.push or args.dry_run) and not (args.push and args.to == "huggingface"):
        raise UserError("--push: only with --to huggingface, and --dry-run only with --push. Add what is missing")
    if args.push and not args.dry_run:
        from huggingface_hub import get_token

        if not get_token():
            raise UserError(f"{args.push}: no access token of the hub. Run `hf auth login`, or set HF_TOKEN")
    bundle = locate(Path(args.model))
    sentences = list(lines(Path(args.sentences))) if args.sentences else phrases(load_info(bundle).src)
    from dragoman.export import argos, huggingface
    from dragoman.translation import export

    if args.to == "huggingface":
        print(huggingface.export_bundle(bundle, sentences))
    else:
        module = argos if args.to == "argos" else export
        print(module.export_bundle(bundle, sentences, quantization=args.quantization))
    if args.push:
        push(bundle / huggingface.FOLDER, args.push, args.dry_run)


def push(folder: Path, repo: str, dry_run: bool) -> None:
    """Show the files of the export and upload them."""
    from huggingface_hub import HfApi, constants

    sizes = {path.name: path.stat().st_size for path in sorted(folder.iterdir())}
    print(f"{'would send' if dry_run else 'sending'} to {constants.ENDPOINT}/{repo}:")
    print("\n".join(f"  {size / 1e3:9,.1f} kB  {name}" for name, size in sizes.items()))
    if dry_run:
        return
    try:
        HfApi().create_repo(repo, private=True, exist_ok=True)
        commit = HfApi().upload_folder(repo_id=repo, folder_path=folder, commit_message="Export from Dragoman")
    except Exception as error:  # of the network, of the hub, or a name that the hub does not allow
        raise UserError(f"{repo}: not sent ({error})") from error
    print(f"sent: {commit.commit_url}")


def phrases(language: str) -> list[str]:
    """Return the phrasebook's validation sentences of a language, if it has any."""
    path = files.included("data/phrasebook/written") / "validation.jsonl.gz"
    rows = [json.loads(line)["translation"] for line in lines(path)]
    return [row[language] for row in rows if language in row]


if __name__ == "__main__":
    sys.exit(main())
