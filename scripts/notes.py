"""Print the worked examples of the study notes: python scripts/notes.py mask pe

The numbers are computed with the program's own modules. Without a name, the examples are listed; `all` prints each.
--out writes a page (.html), or the picture of one example (.png).
"""

import sys
from pathlib import Path
from typing import Any

from dragoman.commands import cli
from dragoman.errors import UserError, check_choice


@cli.command
def main(argv: list[str]) -> None:
    parser = cli.Parser(__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="examples; none: the list")
    parser.add_argument("--language", default="en", metavar="CODE", help="zh or en (default: en)")
    parser.add_argument("--out", metavar="FILE", help="a .html page, or a .png picture of one example")
    parser.add_argument("--overwrite", action="store_true", help="replace FILE if it exists already")
    args = parser.parse_args(argv)
    check_choice("--language", args.language, ("zh", "en"))
    from dragoman.explain.notes import EXAMPLES, PICTURES, titles
    from dragoman.explain.page import render

    for name in args.names:
        check_choice("example", name, [*EXAMPLES, "all"])
    names = list(EXAMPLES) if "all" in args.names else args.names
    suffix = Path(args.out or "").suffix.lower()
    one_picture = suffix == ".png" and len(names) == 1 and names[0] in PICTURES
    if args.out and not one_picture and (suffix != ".html" or not names):
        raise UserError(f"--out {args.out}: name examples and a .html page, or a .png of one of {', '.join(PICTURES)}")
    if not names:
        for name, line in sorted(titles(args.language), key=lambda each: each[1]):
            note, title = line.split("  ", 1)
            print(f"{name:10}{note:18}{title}")
        return
    examples: list[dict[str, Any]] = []
    for name in names:
        values = EXAMPLES[name]()
        text = render(f"explain/notes_{args.language}.j2", block=name, autoescape=False, **values).decode().strip()
        picture = values["picture"]() if args.out and name in PICTURES else b""
        examples.append({"name": name, "text": text, "picture": picture})
    if not args.out:
        hint = {"en": "\n\nThe picture: --out FILE.png", "zh": "\n\n图片：--out FILE.png"}[args.language]
        print("\n\n\n".join(each["text"] + hint * (each["name"] in PICTURES) for each in examples))
        return
    with cli.new_file(args.out, overwrite=args.overwrite) as file:
        page = render("explain/notes.html", examples=examples, language=args.language)
        file.write(examples[0]["picture"] if one_picture else page)
    print(args.out)


if __name__ == "__main__":
    sys.exit(main())
