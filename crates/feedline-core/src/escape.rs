//! Escapes text that comes from data, such as file and column names, before it is printed: it must neither move the
//! cursor of a terminal nor forge a line.

use std::borrow::Cow;
use std::path::Path;

/// Escapes control characters except line breaks and tabs, for our own text of several lines.
pub fn lines(text: &str) -> Cow<'_, str> {
    escaped(text, |character| is_hidden(character) && character != '\n' && character != '\t')
}

/// Escapes control characters and line breaks.
pub fn one_line(text: &str) -> Cow<'_, str> {
    escaped(text, is_hidden)
}

/// A path on one line.
pub fn path(path: &Path) -> String {
    one_line(&path.to_string_lossy()).into_owned()
}

/// Control characters, and characters that are invisible or change the writing direction.
fn is_hidden(character: char) -> bool {
    let is_invisible = matches!(
        character,
        '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}'
    );
    character.is_control() || is_invisible
}

fn escaped(text: &str, is_escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.chars().any(&is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut plain = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        if is_escaped(character) {
            plain.extend(character.escape_default());
        } else {
            plain.push(character);
        }
    }
    Cow::Owned(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_moves_the_cursor_or_forges_a_line() {
        assert_eq!(one_line("a\u{1b}[2Jb\r\nok  c.jpg"), r"a\u{1b}[2Jb\r\nok  c.jpg");
        assert_eq!(one_line("\u{9b}31m \u{202e}gpj.exe"), r"\u{9b}31m \u{202e}gpj.exe");
        assert_eq!(lines("two\nlines\x07\ttab"), "two\nlines\\u{7}\ttab");
        assert_eq!(path(Path::new("ä/日本 1.jpg")), "ä/日本 1.jpg");
        assert!(matches!(one_line("plain"), Cow::Borrowed("plain")));
    }
}
