"""Names that Markdown, GitHub, a terminal, HTML or a spreadsheet would act on."""

from __future__ import annotations

from typing import Final

HOSTILE: Final = (
    "a|b", "`code`", "``a` b", "<script>alert(1)</script>", "</details>", "<!-- comment", "]]>",
    "[x](javascript:alert(1))", "](javascript:alert(1))", "![i](https://example.org/i.png)", "<https://example.org>",
    "https://example.org/a_b", "www.example.org", "mailto:a@example.org", "ftp://example.org", "@everyone",
    "a @team/all b", "see #123", "GH-12", "owner/name#12", "owner/name@0123456789abcdef", "deadbeefcafe",
    "CVE-2024-1234", "$x^2$", "a $`x`$ b", ":fire:", "c10::fire::x", "# heading", "#", "- item", "+ item", "* item",
    "1. item", "12) item", "> quote", "---", "- - -", "===", ":-:", "***", "~~gone~~", "~~~", "```", "    indented",
    "\titem", "*bold*", "_soft_ __hard__", "aten::_foreach_add_", "&amp;", "&#64;everyone", "[^1]", "[ ] task", "[x]",
    "\\", "\\|", "\\\\|", "a\\", "|", "||", "| --- |", "`|`", "@a|b", "`@a", "@`a`", "@a\\", "at <b>|@x`y|`#1|",
    "line\nbreak", "line\r\n\r\n# heading", "\u202egnp.exe", "zero\u200bwidth", "\ufeff", "\x1b[2Jgone", "\x00",
    "x\u2028y", "\u3164", "=cmd()", "+1", "-2.5 ms", "lambda()#1}::operator()", "模型", "  ", "", "a  b",
)  # fmt: skip

#: What a spreadsheet would run, in the ways it may begin.
FORMULAS: Final = (
    "=cmd()", "=cmd|' /C calc'!A0", "+1+1", "-2+3", "@SUM(A1)", "\t=cmd()", "\r=cmd()", "\n=cmd()", "\r\n=cmd()",
    "\uff1dcmd()", "\uff0b1", "\uff0d1", "\uff20SUM(A1)", "\x00=cmd()", "\ufeff=cmd()", "a,=cmd()", 'a",=cmd()',
    "a\n=cmd()",
)  # fmt: skip
