"""A page of the report, as tests read it."""

import base64
import io
from html.parser import HTMLParser

import pandas as pd

VOID = {"meta", "link", "br", "img", "input", "hr"}


class Page(HTMLParser):
    """What a browser would find; unbalanced tags raise."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.downloads, self.loads = [], [], {}, []
        self.open, self.texts = [], []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if tag not in VOID:
            self.open.append(tag)
        if "id" in attrs:
            self.ids.append(attrs["id"])
        if tag == "a" and "download" in attrs:
            self.downloads[attrs["download"]] = attrs["href"]
        elif tag == "a":
            self.links.append(attrs["href"])
        else:
            names = ("src", "href", "xlink:href", "data", "srcset", "action")
            self.loads += [attrs[name] for name in names if name in attrs]

    def handle_startendtag(self, tag, attrs):
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.handle_endtag(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())

    def csv(self, key):
        kind, _, content = self.downloads[f"{key}.csv"].partition(",")
        assert kind == "data:text/csv;base64"
        return pd.read_csv(io.BytesIO(base64.b64decode(content)))
