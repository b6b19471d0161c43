//! Text that comes from data, such as names of files and columns, where a person reads it: it must neither move the
//! cursor of a terminal nor forge a line.

use std::borrow::Cow;
use std::path::Path;

/// Without control characters, but for line ends and tabs: for text of several lines of ours.
pub fn lines(text: &str) -> Cow<'_, str> {
    escaped(text, |letter| is_hidden(letter) && letter != '\n' && letter != '\t')
}

/// Without control characters and line ends.
pub fn one_line(text: &str) -> Cow<'_, str> {
    escaped(text, is_hidden)
}

/// A path in one line.
pub fn path(path: &Path) -> String {
    one_line(&path.to_string_lossy()).into_owned()
}

/// Control characters, and those that change the direction of writing or cannot be seen.
fn is_hidden(letter: char) -> bool {
    let is_invisible = matches!(
        letter,
        '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{2069}' | '\u{feff}'
    );
    letter.is_control() || is_invisible
}

fn escaped(text: &str, is_escaped: impl Fn(char) -> bool) -> Cow<'_, str> {
    if !text.chars().any(&is_escaped) {
        return Cow::Borrowed(text);
    }
    let mut plain = String::with_capacity(text.len() + 16);
    for letter in text.chars() {
        if is_escaped(letter) {
            plain.extend(letter.escape_default());
        } else {
            plain.push(letter);
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
