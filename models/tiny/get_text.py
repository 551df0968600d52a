#!/usr/bin/env python3
"""Gathers free English text from Debian's documentation packages for the tiny model.

    get_text.py [--out build/tiny]

Downloads the packages of SOURCES (Debian main) with apt-get, unpacks them under OUT/packages
without installing anything, keeps paragraphs of prose, drops repeated ones, and splits by
document. Writes OUT/train.txt and OUT/valid.txt (documents separated by a form feed,
0x0c), and here heldout.txt (only from documents in the public domain) and SOURCES.md.
The same package versions give the same bytes.
"""
import argparse
import glob
import gzip
import hashlib
import html.parser
import os
import re
import subprocess
import sys

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))

HELDOUT_BYTES = 100_000     # of heldout.txt
HELDOUT_DOCUMENT = 20_000   # most that one document gives to it
SOURCE_BYTES = 12_000_000   # most that one package gives
VALID_PERCENT = 2

# package, files (a regex searched in the path), how to read them, licence of the text,
# whether a sample of it may stand in this repository: only what is in the public domain
SOURCES = [
    ("debian-handbook", r"/html/en-US/.*\.html$", "html", "GPL-2+ or CC-BY-SA-3.0", False),
    ("debian-reference-en", r"/debian-reference/.*\.en\.html$", "html", "GPL-2+", False),
    ("developers-reference", r"\.html$", "html", "GPL-2+", False),
    ("debian-policy", r"/policy\.html/.*\.html$", "html", "GPL-2+", False),
    ("debian-faq", r"\.en\.html$", "html", "copyleft notice of the Debian FAQ", False),
    ("installation-guide-amd64", r"/en/.*\.html$", "html", "GPL-2", False),
    ("harden-doc", r"/html/en-US/.*\.html$", "html", "GPL-2+", False),
    ("debmake-doc", r"/html/.*\.en\.html$", "html", "Expat", False),
    ("gitmagic", r"\.html$", "html", "GPL-3+", False),
    ("git-doc", r"\.html$", "html", "GPL-2", False),
    ("gnome-user-docs", r"/help/C/.*\.page$", "html", "CC-BY-SA-3.0", False),
    ("vim-doc", r"/html/.*\.html$", "pre", "OPL-1+, no options exercised", False),
    ("c++-annotations-txt", r"annotations.*\.txt\.gz$|\.txt\.gz$", "text", "GPL-2+", False),
    ("exim4-doc-html", r"\.html$", "html", "GPL-2+", False),
    ("linux-doc-6.1", r"/html/(?!translations|_).*\.html$", "html", "GPL-2", False),
    ("manpages", r"/man/man\d/.*\.gz$", "man", "as stated in each page: GPL, BSD, Linux-man-pages-copyleft", False),
    ("manpages-dev", r"/man/man\d/.*\.gz$", "man", "as stated in each page: GPL, BSD, Linux-man-pages-copyleft",
     False),
    ("perl-doc", r"/pod/(?!perl\d+delta).*\.pod$", "pod", "GPL-1+ or Artistic", False),
    ("dict-foldoc", r"\.dict\.dz$", "dict", "GFDL-1.1+, no invariant sections", False),
    ("dict-jargon", r"\.dict\.dz$", "dict", "public domain", True),
    ("dict-devil", r"\.dict\.dz$", "dict", "public domain", True),
    ("abs-guide", r"\.html$", "html", "public domain", True),
    ("sqlite3-doc", r"(?<!changes)\.html$", "html", "public domain", True),
    ("postgresql-doc-15", r"/html/(?!release|features).*\.html$", "html", "PostgreSQL", False),
    ("python3.11-doc", r"/html/(?!changelog|whatsnew/changelog|genindex|_).*\.html$", "html", "PSF-2", False),
    ("python-django-doc", r"/html/(?!releases|genindex|_).*\.html$", "html", "BSD-3-Clause", False),
    ("apache2-doc", r"/manual/en/.*\.html$", "html", "Apache-2.0", False),
    ("rust-doc", r"/html/(book|nomicon|reference|rust-by-example|cargo|rustc|rustdoc|edition-guide|embedded-book"
     r"|unstable-book)/(?!print|.*/print).*\.html$"
     r"|/html/std/(?!arch/|.*/arch/).*(index|struct|trait|primitive|keyword)[^/]*\.html$", "html",
     "MIT or Apache-2.0", False),
]


class Prose(html.parser.HTMLParser):
    """Paragraphs of an HTML or Mallard page, without code blocks, tables of contents and menus."""
    BREAK = {"p", "li", "dd", "dt", "h1", "h2", "h3", "h4", "h5", "h6", "div", "td", "th", "tr", "title", "br",
             "section", "article", "ul", "ol", "dl", "table", "blockquote", "item", "note", "steps", "summary",
             "details", "caption", "body"}
    SKIP = {"script", "style", "nav", "header", "footer", "head", "info", "svg", "form", "button", "screen",
            "title", "math"}
    SKIP_CLASS = {"navheader", "navfooter", "toc", "sphinxsidebar", "related", "headerlink", "sidebar", "footer",
                  "highlight", "programlisting", "screen", "docnav"}
    VOID = {"br", "img", "hr", "meta", "link", "input", "area", "base", "col", "wbr"}

    def __init__(self, keep_pre=False):
        super().__init__(convert_charrefs=True)
        self.keep_pre, self.paragraphs, self.words, self.skipping = keep_pre, [], [], []
        self.skip_tags = self.SKIP if keep_pre else self.SKIP | {"pre"}

    def flush(self):
        text = "".join(self.words)
        self.words = []
        self.paragraphs.extend(re.split(r"\n[ \t]*\n", text) if self.keep_pre else [text])

    def handle_starttag(self, tag, attrs):
        if tag in self.VOID:
            if tag == "br":
                self.words.append("\n" if self.keep_pre else " ")
            return
        if self.skipping:
            if tag == self.skipping[0]:
                self.skipping.append(tag)
            return
        if tag in self.skip_tags or self.SKIP_CLASS & set((dict(attrs).get("class") or "").split()):
            self.skipping = [tag]
        if tag in self.BREAK:
            self.flush()

    def handle_endtag(self, tag):
        if self.skipping:
            if tag == self.skipping[0]:
                self.skipping.pop()
            return
        if tag in self.BREAK:
            self.flush()

    def handle_data(self, data):
        if not self.skipping:
            self.words.append(data)


def from_html(text, keep_pre=False):
    parser = Prose(keep_pre)
    parser.feed(text)
    parser.close()
    parser.flush()
    return parser.paragraphs


def from_pre(text):
    """Vim's manual: text set with line breaks; examples are indented by a tab or start a line with one."""
    return [p for p in from_html(text, True) if not re.search(r"^\t| {8}|\S\t+\S", p, re.M)]


def from_text(text):
    return [p for p in re.split(r"\n[ \t]*\n", text) if not re.match(r"[ \t]{4}", p.lstrip("\n"))]


def from_dict(text):
    """Blank lines part entries and paragraphs; the braces of cross-references go."""
    return re.split(r"\n[ \t]*\n", re.sub(r"[{}]", "", text))


def from_pod(text):
    text = re.sub(r"^=(?:begin|for)\b.*?(?=^=end|\n\n)", "", text, flags=re.M | re.S)
    paragraphs = []
    for p in re.split(r"\n[ \t]*\n", text):
        if p.startswith((" ", "\t")):
            continue
        p = re.sub(r"^=(?:head\d|item|over|back|cut|pod|encoding|end)\b[^\S\n]*\*?\d*", "", p)
        p = p.replace("E<lt>", "<").replace("E<gt>", ">").replace("E<sol>", "/").replace("E<verbar>", "|")
        p = re.sub(r"[A-Z]<{2,} (.*?) >{2,}", r"\1", p, flags=re.S)
        for _ in range(3):
            p = re.sub(r"X<[^<>]*>", "", p)
            p = re.sub(r"L<(?:([^<>|]*)\|)?([^<>|]*)>", lambda m: m[1] or m[2].replace("/", " "), p)
            p = re.sub(r"\b[BICFSZ]<([^<>]*)>", r"\1", p)
        paragraphs.append(p)
    return paragraphs


def from_man(text):
    """A plain reading of man(7) macros; what lies between .nf and .fi or .EX and .EE goes."""
    paragraphs, words, verbatim = [], [], False
    for line in text.split("\n"):
        if line.startswith(('.\\"', "'\\\"", ".\\")):
            continue
        match = re.match(r"[.']\s*([A-Za-z]+)\s*(.*)", line)
        macro, rest = match.groups() if match else ("", line)
        if macro in ("nf", "EX", "TS"):
            verbatim = True
        elif macro in ("fi", "EE", "TE"):
            verbatim = False
        elif macro in ("SH", "SS", "PP", "P", "LP", "TP", "IP", "HP", "RS", "RE", "TH", "sp", "br"):
            paragraphs.append(" ".join(words))
            words = []
        elif verbatim:
            pass
        elif macro in ("BR", "RB", "IR", "RI", "BI", "IB"):
            parts = re.findall(r'"([^"]*)"|(\S+)', rest)
            words.append("".join(a or b for a, b in parts))
        elif macro in ("B", "I", "SM", "SB"):
            words.append(rest.replace('"', ""))
        elif not macro:
            words.append(rest)
    paragraphs.append(" ".join(words))
    return [unescape_roff(p) for p in paragraphs]


def unescape_roff(text):
    text = re.sub(r"\\f(?:\[[^\]]*\]|\(..|.)|\\s[-+]?\d|\\[&/,|^%:]|\\c\b", "", text)
    named = {"aq": "'", "dq": '"', "em": "-", "en": "-", "bu": "", "lq": '"', "rq": '"', "oq": "'", "cq": "'",
             "ti": "~", "ha": "^", "co": "(C)", "rs": "\\", "mu": "x", "ga": "`"}
    text = re.sub(r"\\(?:\((..)|\[([^\]]*)\])", lambda m: named.get(m[1] or m[2], " "), text)
    return text.replace("\\-", "-").replace("\\ ", " ").replace("\\e", "\\").replace("\\'", "'").replace("\\~", " ")


READERS = {"html": from_html, "pre": from_pre, "text": from_text, "dict": from_dict, "pod": from_pod,
           "man": from_man}

PLAIN = str.maketrans({"\u2018": "'", "\u2019": "'", "\u201c": '"', "\u201d": '"', "\u2010": "-", "\u2011": "-",
                       "\u2013": "-", "\u2014": "-", "\u2212": "-", "\u00a0": " ", "\u2026": "...", "\u00ad": "",
                       "\u200b": "", "\u00b6": "", "\u00a7": "", "\u2192": "->", "\ufb01": "fi", "\ufb02": "fl"})


def clean(paragraph):
    return re.sub(r"\s+", " ", paragraph.translate(PLAIN)).strip()


def is_prose(text):
    """English running text: long enough, mostly letters and ASCII, with the small words it needs."""
    if len(text) < 60 or len(text) > 6000:
        return False
    letters = sum(c.isalpha() or c == " " for c in text)
    if letters < 0.84 * len(text) or sum(ord(c) > 126 for c in text) > 0.01 * len(text):
        return False
    words = text.lower().split()
    small = sum(w in ("the", "a", "an", "of", "to", "and", "in", "is", "that", "it", "for", "you", "be", "this",
                      "are", "or", "with", "as", "if", "not") for w in words)
    return small >= 0.12 * len(words) and max(map(len, words)) < 60


def digest(text):
    return hashlib.sha256(text.encode()).digest()


def read(path):
    data = open(path, "rb").read()
    if path.endswith((".gz", ".dz")):
        data = gzip.decompress(data)
    return data.decode("utf-8", "replace")


def documents_of(package, folder, pattern, kind):
    """(name, paragraphs) of each document, in an order that only the names decide."""
    paths = [p for p in glob.glob(glob.escape(folder) + "/**", recursive=True)
             if re.search(pattern, p) and os.path.isfile(p) and not os.path.islink(p)]
    found = []
    for path in sorted(paths):
        name = package + "/" + os.path.relpath(path, folder).replace("usr/share/", "", 1)
        paragraphs = [p for p in map(clean, READERS[kind](read(path))) if is_prose(p)]
        if kind in ("dict", "text"):    # one large file: pieces of it are the documents
            found += [(f"{name}#{i // 40}", paragraphs[i:i + 40]) for i in range(0, len(paragraphs), 40)]
        else:
            found.append((name, paragraphs))
    return sorted(found, key=lambda d: digest(d[0]))


def download(folder):
    """Fetches what is not there yet; gives package -> path of its .deb."""
    os.makedirs(folder, exist_ok=True)
    debs = {}
    for package, *_ in SOURCES:
        if not glob.glob(f"{glob.escape(os.path.join(folder, package))}_*.deb"):
            subprocess.run(["apt-get", "-q", "download", package], cwd=folder, check=True,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        found = glob.glob(f"{glob.escape(os.path.join(folder, package))}_*.deb")
        if len(found) != 1:
            sys.exit(f"get_text: {len(found)} files for package {package} in {folder}, expected 1")
        debs[package] = found[0]
    return debs


def gather(debs, folder):
    """All documents with prose, each paragraph once in all of them: (source index, name, text)."""
    seen, gathered = set(), []
    for index, (package, pattern, kind, _, _) in enumerate(SOURCES):
        into = os.path.join(folder, package)
        if not os.path.isdir(into):
            subprocess.run(["dpkg-deb", "-x", debs[package], into], check=True)
        size = 0
        for name, paragraphs in documents_of(package, into, pattern, kind):
            fresh = []
            for p in paragraphs:
                key = digest(re.sub(r"\W+", " ", p.lower()))[:12]
                if key not in seen:
                    seen.add(key)
                    fresh.append(p)
            text = "\n\n".join(fresh) + "\n"
            if len(text) < 400 or size + len(text) > SOURCE_BYTES:
                continue
            size += len(text.encode())
            gathered.append((index, name, text))
        print(f"{package:26} {size / 1e6:6.2f} MB", flush=True)
    return gathered


def split(gathered):
    """Train, validation and sample, disjoint by document; digests of the names decide."""
    gathered = sorted(gathered, key=lambda d: digest("order " + d[1]))
    train, valid, sample, size, used = [], [], [], 0, {}
    for document in gathered:
        index, n = document[0], len(document[2].encode())
        # No source may fill the sample alone.
        if (SOURCES[index][4] and n <= HELDOUT_DOCUMENT and size + n <= HELDOUT_BYTES
                and used.get(index, 0) + n <= 0.4 * HELDOUT_BYTES):
            sample.append(document)
            size += n
            used[index] = used.get(index, 0) + n
        elif int.from_bytes(digest("split " + document[1])[:4], "big") % 100 < VALID_PERCENT:
            valid.append(document)
        else:
            train.append(document)
    return train, valid, sample


def write_sources(debs, train, valid, sample, path):
    lines = ["# Where the text comes from", "",
             "Written by `get_text.py`. All packages are from Debian main. The text itself is not in this",
             "repository, except for the held-out sample `heldout.txt`.", "",
             "| package | version | licence of the text | used, bytes | sha256 of the .deb |",
             "| --- | --- | --- | --- | --- |"]
    for index, (package, _, _, licence, _) in enumerate(SOURCES):
        used = sum(len(t.encode()) for part in (train, valid, sample) for i, _, t in part if i == index)
        sha = hashlib.sha256(open(debs[package], "rb").read()).hexdigest()
        version = subprocess.run(["dpkg-deb", "-f", debs[package], "Version"], capture_output=True, text=True,
                                 check=True).stdout.strip()
        lines.append(f"| {package} | {version} | {licence} | {used} | `{sha}` |")
    sizes = [sum(len(t.encode()) for _, _, t in part) for part in (train, valid, sample)]
    lines += ["", f"Train: {len(train)} documents, {sizes[0]} bytes. Validation: {len(valid)} documents, "
              f"{sizes[1]} bytes. Sample: {len(sample)} documents, {sizes[2]} bytes.", "",
              "## heldout.txt", "",
              "Paragraphs of these documents, in this order, unchanged but for white space, quotation marks and",
              "dashes, and without code blocks. All are in the public domain, as `/usr/share/doc/PACKAGE/copyright`",
              "of their packages states.", "",
              "| document | bytes |", "| --- | --- |"]
    lines += [f"| {name} | {len(text.encode())} |" for _, name, text in sample]
    with open(path, "w") as file:
        file.write("\n".join(lines) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", default=os.path.join(ROOT, "build", "tiny"))
    out = parser.parse_args().out
    folder = os.path.join(out, "packages")
    debs = download(folder)
    train, valid, sample = split(gather(debs, folder))
    for name, part in (("train.txt", train), ("valid.txt", valid)):
        with open(os.path.join(out, name), "w") as file:
            file.write("\x0c".join(text for _, _, text in part))
    with open(os.path.join(HERE, "heldout.txt"), "w") as file:
        file.write("\n".join(text for _, _, text in sample))
    write_sources(debs, train, valid, sample, os.path.join(HERE, "SOURCES.md"))
    for name, part in (("train", train), ("validation", valid), ("heldout.txt", sample)):
        print(f"{name}: {len(part)} documents, {sum(len(t.encode()) for _, _, t in part) / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
