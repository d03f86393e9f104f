"""The forms of texts in requests, each with the words in which a refusal states it."""

from service.settings import MAIL_ADDRESS

_ANY = r"[^\x00-\x08\x0b\x0c\x0e-\x1f\x7f]*"
TEXT = rf"^{_ANY}$"
PROSE = rf"^{_ANY}[^\x00-\x20\x7f]{_ANY}$"
LABEL = r"^[^\x00-\x1f\x7f]+$"
SLUG = r"^[a-z0-9]+(-[a-z0-9]+)*$"
ACCOUNT = r"^[a-z0-9._-]*[a-z0-9_-][a-z0-9._-]*$"
URL = r"^[\x21-\x7e]+$"

IN_WORDS = {
    TEXT: "expected text without control characters",
    PROSE: "expected text without control characters, and not blank",
    LABEL: "expected text of one line without control characters",
    SLUG: "expected words of lower-case letters and digits, joined by single hyphens",
    ACCOUNT: "expected lower-case letters, digits, dots, hyphens and underscores, and not dots alone",
    URL: "expected an address without blanks, in ASCII",
    MAIL_ADDRESS: "expected a mail address, such as name@agency.example",
}
