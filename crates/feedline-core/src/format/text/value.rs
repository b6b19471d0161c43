//! Walks over JSON text that is known to be valid. Only requested values are parsed.

use std::borrow::Cow;

/// The type of a JSON value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum JsonType {
    Null,
    Bool(bool),
    Number,
    Text,
    List,
    Object,
}

impl JsonType {
    pub(super) fn of(value: &str) -> JsonType {
        match value.as_bytes().first() {
            Some(b'n') => JsonType::Null,
            Some(b't') => JsonType::Bool(true),
            Some(b'f') => JsonType::Bool(false),
            Some(b'"') => JsonType::Text,
            Some(b'[') => JsonType::List,
            Some(b'{') => JsonType::Object,
            Some(_) | None => JsonType::Number,
        }
    }

    /// Its name in messages.
    pub(super) fn name(self) -> &'static str {
        match self {
            JsonType::Null => "null",
            JsonType::Bool(_) => "true or false",
            JsonType::Number => "a number",
            JsonType::Text => "text",
            JsonType::List => "a list",
            JsonType::Object => "an object",
        }
    }
}

/// The entries of an object, or the values of a list with empty keys.
pub(super) struct ValueParts<'a> {
    rest: &'a str,
    is_object: bool,
}

/// The parts of an object or of a list; none for other values.
pub(super) fn parts(value: &str) -> ValueParts<'_> {
    let is_object = JsonType::of(value) == JsonType::Object;
    let is_list = JsonType::of(value) == JsonType::List;
    let rest = if is_object || is_list { &value[1..] } else { "" };
    ValueParts { rest, is_object }
}

impl<'a> Iterator for ValueParts<'a> {
    type Item = (&'a str, &'a str);

    fn next(&mut self) -> Option<(&'a str, &'a str)> {
        let mut rest = after(self.rest, ',');
        let mut key = "";
        if self.is_object && rest.starts_with('"') {
            (key, rest) = rest.split_at(end(rest));
            rest = after(rest, ':');
        }
        if rest.is_empty() || rest.starts_with(['}', ']']) {
            self.rest = "";
            return None;
        }
        let (value, rest) = rest.split_at(end(rest));
        self.rest = rest;
        Some((key, value))
    }
}

/// Skips white space, and `mark` if it is there.
fn after(text: &str, mark: char) -> &str {
    let text = text.trim_ascii_start();
    text.strip_prefix(mark).map_or(text, str::trim_ascii_start)
}

/// The end of the value at the start of a text.
fn end(text: &str) -> usize {
    let bytes = text.as_bytes();
    let (mut depth, mut at) = (0_usize, 0);
    while at < bytes.len() {
        match bytes[at] {
            b'"' => {
                at = text_end(bytes, at);
                if depth == 0 {
                    return at;
                }
                continue;
            }
            b'{' | b'[' => depth += 1,
            b'}' | b']' if depth == 0 => return at,
            b'}' | b']' => {
                depth -= 1;
                if depth == 0 {
                    return at + 1;
                }
            }
            b',' | b':' | b' ' | b'\t' | b'\r' | b'\n' if depth == 0 => return at,
            _ => {}
        }
        at += 1;
    }
    bytes.len()
}

/// The end of a string that begins with a quote at `at`.
fn text_end(bytes: &[u8], at: usize) -> usize {
    let mut at = at + 1;
    while let Some(found) = bytes.get(at..).and_then(|rest| memchr::memchr2(b'"', b'\\', rest)) {
        at += found;
        if bytes[at] == b'"' {
            return at + 1;
        }
        at += 2;
    }
    bytes.len()
}

/// The content of a string literal.
pub(super) fn unquoted(text: &str) -> Option<Cow<'_, str>> {
    let inside = text.strip_prefix('"')?.strip_suffix('"')?;
    match inside.contains('\\') {
        true => serde_json::from_str(text).ok().map(Cow::Owned),
        false => Some(Cow::Borrowed(inside)),
    }
}

/// The value under a path of keys; the last one if a key occurs twice.
pub(super) fn under<'a>(object: &'a str, key: &str) -> Option<&'a str> {
    let head = key.split_once('.').map_or("", |(head, _)| head);
    let (mut whole, mut nested) = (None, None);
    for (name, value) in parts(object) {
        let Some(name) = unquoted(name) else { continue };
        if name == key {
            whole = Some(value);
        } else if !head.is_empty() && name == head {
            nested = under(value, &key[head.len() + 1..]);
        }
    }
    whole.or(nested)
}
