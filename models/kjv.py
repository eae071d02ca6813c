"""The text that the carried model is trained on: the King James Bible from the Debian package bible-kjv-text, as plain lines.

A chapter is its heading, an empty line, one verse per line and an empty line. Verse numbers are left out.
"""
import re
import subprocess
import sys

HELD_OUT_BYTES = 96 * 1024      # the end of the text: never trained on, looked at once, kept in the repository
VALID_BYTES = 64 * 1024         # before it: never trained on, chooses the checkpoint


def read_package():
    """The text from the package's own reader."""
    try:
        raw = subprocess.run(["bible", "-l0", "gen1:1-rev22:21"], stdin=subprocess.DEVNULL, capture_output=True, check=True).stdout
    except FileNotFoundError:
        sys.exit("kjv.py: no command `bible`: install the Debian packages bible-kjv and bible-kjv-text, or give --text FILE")
    text = re.sub(r"^ +\d+ ", "", raw.decode("ascii"), flags=re.M)
    return text.strip().encode() + b"\n"


def split(text):
    """(train, valid, held out), cut at ends of lines."""
    second = text.index(b"\n", len(text) - HELD_OUT_BYTES) + 1
    first = text.index(b"\n", second - VALID_BYTES) + 1
    return text[:first], text[first:second], text[second:]
