"""What can be seen of a text: a name of characters that show nothing would look like no name.

Characters show nothing by the properties of Unicode 16 (UCD: DerivedGeneralCategory,
DerivedCoreProperties, PropList, NamesList). They are: the separators (category Z); format characters
(Cf), but those with a glyph (Prepended_Concatenation_Mark) and those that arrange hieroglyphs;
Default_Ignorable_Code_Point with all that is reserved for it; noncharacters; and what the code charts
call blank: of Braille, the null notehead, the Khitan filler and two hieroglyphs. The list does not
depend on the Unicode of the Python that runs.
"""

from __future__ import annotations

from typing import Final

_INVISIBLE: Final = (
    r"\u0020\u00a0\u00ad\u034f\u061c\u115f\u1160\u1680\u17b4\u17b5\u180b-\u180f\u2000-\u200f"
    r"\u2028-\u202f\u205f-\u206f\u2800\u3000\u3164\ufdd0-\ufdef\ufe00-\ufe0f\ufeff\uffa0"
    r"\ufff0-\ufffb\ufffe-\uffff\U00013441\U00013442\U00016fe4"
    r"\U0001bca0-\U0001bca3\U0001d159\U0001d173-\U0001d17a\U0001fffe-\U0001ffff"
    r"\U0002fffe-\U0002ffff\U0003fffe-\U0003ffff\U0004fffe-\U0004ffff\U0005fffe-\U0005ffff"
    r"\U0006fffe-\U0006ffff\U0007fffe-\U0007ffff\U0008fffe-\U0008ffff\U0009fffe-\U0009ffff"
    r"\U000afffe-\U000affff\U000bfffe-\U000bffff\U000cfffe-\U000cffff\U000dfffe-\U000dffff"
    r"\U000efffe-\U000effff\U000ffffe-\U000fffff\U0010fffe-\U0010ffff\U000e0000-\U000e0fff"
)
HAS_VISIBLE: Final = rf"(?=[{_INVISIBLE}]*[^{_INVISIBLE}])"
"""Begins a regular expression for texts that show something."""
