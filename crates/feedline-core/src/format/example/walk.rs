//! Parses protobuf in place: the fields of a message, and the few messages of tf.train.Example. Borrows everything and
//! copies nothing.
//!
//! Where protobuf and TensorFlow's own parser differ, it follows protobuf: repeated messages are merged, the last
//! member of a oneof counts, packed and unpacked runs may be mixed, unknown fields are skipped.

/// Deeper nested groups are refused, as by protobuf.
const DEEPEST: usize = 100;

/// Bytes that are not protobuf.
#[derive(Debug)]
pub(super) struct Malformed {
    pub(super) what: &'static str,
    /// The address of the bad byte: the caller that has the whole record converts it to an offset.
    address: usize,
}

impl Malformed {
    #[cold]
    fn new(what: &'static str, at: &[u8]) -> Malformed {
        Malformed { what, address: at.as_ptr() as usize }
    }

    /// The offset of the bad byte in the record.
    pub(super) fn offset(&self, record: &[u8]) -> usize {
        self.address.saturating_sub(record.as_ptr() as usize).min(record.len())
    }
}

type WalkResult<T> = Result<T, Malformed>;

/// The value of a field.
#[derive(Clone, Copy, Debug)]
pub(super) enum FieldValue<'a> {
    Varint(u64),
    Four(&'a [u8]),
    Bytes(&'a [u8]),
    /// A type that no message here has.
    Unknown,
}

/// The fields of a message.
pub(super) struct MessageFields<'a>(pub(super) &'a [u8]);

impl<'a> MessageFields<'a> {
    /// The next field: its number and its value.
    #[inline]
    pub(super) fn next(&mut self) -> WalkResult<Option<(u32, FieldValue<'a>)>> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let start = self.0;
        let (number, wire) = self.tag()?;
        let part = match wire {
            0 => FieldValue::Varint(varint(&mut self.0)?),
            1 => {
                self.take(8)?;
                FieldValue::Unknown
            }
            2 => {
                let length = small_varint(&mut self.0)?;
                FieldValue::Bytes(self.take(length)?)
            }
            3 => {
                self.skip_group(number)?;
                FieldValue::Unknown
            }
            5 => FieldValue::Four(self.take(4)?),
            4 => return Err(Malformed::new("a group ends without a start", start)),
            _ => return Err(Malformed::new("a field has an unknown type", start)),
        };
        Ok(Some((number, part)))
    }

    #[inline]
    fn tag(&mut self) -> WalkResult<(u32, u8)> {
        let start = self.0;
        let tag = small_varint(&mut self.0)?;
        match u32::try_from(tag) {
            Ok(tag) if tag >> 3 > 0 => Ok((tag >> 3, (tag & 7) as u8)),
            Ok(_) | Err(_) => Err(Malformed::new("a field has no valid number", start)),
        }
    }

    #[inline]
    fn take(&mut self, length: u64) -> WalkResult<&'a [u8]> {
        if length > self.0.len() as u64 {
            return Err(Malformed::new("a field is longer than its message", self.0));
        }
        let (taken, rest) = self.0.split_at(length as usize);
        self.0 = rest;
        Ok(taken)
    }

    #[cold]
    fn skip_group(&mut self, number: u32) -> WalkResult<()> {
        let mut open = vec![number];
        while let Some(innermost) = open.last().copied() {
            let start = self.0;
            let (number, wire) = self.tag()?;
            match wire {
                0 => {
                    varint(&mut self.0)?;
                }
                1 => {
                    self.take(8)?;
                }
                2 => {
                    let length = small_varint(&mut self.0)?;
                    self.take(length)?;
                }
                3 if open.len() < DEEPEST => open.push(number),
                3 => return Err(Malformed::new("groups are nested too deeply", start)),
                4 if number == innermost => {
                    open.pop();
                }
                4 => return Err(Malformed::new("a group ends without a start", start)),
                5 => {
                    self.take(4)?;
                }
                _ => return Err(Malformed::new("a field has an unknown type", start)),
            }
        }
        Ok(())
    }
}

/// A value. Only the lowest 64 bits count, as for protobuf: some writers fill the last byte of a negative number with
/// ones.
#[inline]
fn varint(bytes: &mut &[u8]) -> WalkResult<u64> {
    any_varint::<true>(bytes)
}

/// The number of a field, or a length, which never needs as many bits.
#[inline]
fn small_varint(bytes: &mut &[u8]) -> WalkResult<u64> {
    any_varint::<false>(bytes)
}

#[inline]
fn any_varint<const MAY_OVERFLOW: bool>(bytes: &mut &[u8]) -> WalkResult<u64> {
    match bytes.split_first() {
        Some((first, rest)) if *first < 0x80 => {
            *bytes = rest;
            Ok(u64::from(*first))
        }
        Some(_) => long_varint::<MAY_OVERFLOW>(bytes),
        None => Err(Malformed::new("a number is truncated", bytes)),
    }
}

#[inline]
fn long_varint<const MAY_OVERFLOW: bool>(bytes: &mut &[u8]) -> WalkResult<u64> {
    let mut number = 0;
    for (place, byte) in bytes.iter().take(10).enumerate() {
        number |= u64::from(byte & 0x7f) << (7 * place);
        if *byte < 0x80 {
            if place == 9 && *byte > 1 && !MAY_OVERFLOW {
                return Err(Malformed::new("a number has more than 64 bits", bytes));
            }
            *bytes = &bytes[place + 1..];
            return Ok(number);
        }
    }
    let what = if bytes.len() < 10 { "a number is truncated" } else { "a number has no end" };
    Err(Malformed::new(what, bytes))
}

/// The message that a map holds under a key.
#[derive(Clone, Copy, Debug)]
pub(super) enum MapEntry<'a> {
    Nothing,
    Message(&'a [u8]),
    /// The entry of a map whose message is split into several parts.
    Parts(&'a [u8]),
}

impl<'a> MapEntry<'a> {
    /// Visits every part of the message, which is their concatenation.
    #[inline]
    fn each(self, mut visit: impl FnMut(&'a [u8]) -> WalkResult<()>) -> WalkResult<()> {
        match self {
            MapEntry::Nothing => Ok(()),
            MapEntry::Message(message) => visit(message),
            MapEntry::Parts(entry) => {
                let mut fields = MessageFields(entry);
                while let Some((number, part)) = fields.next()? {
                    if let (2, FieldValue::Bytes(message)) = (number, part) {
                        visit(message)?;
                    }
                }
                Ok(())
            }
        }
    }
}

/// Visits every entry of a map from names to messages, in order; the last one of equal names counts.
#[inline]
pub(super) fn entries<'a>(
    map: &'a [u8],
    mut visit: impl FnMut(&'a [u8], MapEntry<'a>),
) -> WalkResult<()> {
    let mut fields = MessageFields(map);
    while let Some((number, part)) = fields.next()? {
        let (1, FieldValue::Bytes(entry)) = (number, part) else { continue };
        let (mut key, mut held) = (&entry[..0], MapEntry::Nothing);
        let mut inner = MessageFields(entry);
        while let Some((number, part)) = inner.next()? {
            match (number, part, held) {
                (1, FieldValue::Bytes(bytes), _) => key = bytes,
                (2, FieldValue::Bytes(message), MapEntry::Nothing) => {
                    held = MapEntry::Message(message)
                }
                (2, FieldValue::Bytes(_), _) => held = MapEntry::Parts(entry),
                _ => {}
            }
        }
        visit(
            key,
            if let MapEntry::Nothing = held { MapEntry::Message(&entry[..0]) } else { held },
        );
    }
    Ok(())
}

/// The type of the values of a feature.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueKind {
    Bytes,
    Float32,
    Int64,
}

impl ValueKind {
    pub(super) fn name(self) -> &'static str {
        match self {
            ValueKind::Bytes => "bytes",
            ValueKind::Float32 => "float32",
            ValueKind::Int64 => "int64",
        }
    }
}

/// The list of values of a feature, still encoded.
#[derive(Debug)]
pub(super) struct Values<'a> {
    /// None if the feature has no list.
    pub(super) kind: Option<ValueKind>,
    list: &'a [u8],
    /// The other parts, if the list is split.
    more: Vec<&'a [u8]>,
}

impl<'a> Values<'a> {
    /// The list of a feature.
    #[inline]
    pub(super) fn of(feature: MapEntry<'a>) -> WalkResult<Values<'a>> {
        let mut values = Values { kind: None, list: &[], more: Vec::new() };
        feature.each(|message| {
            let mut fields = MessageFields(message);
            while let Some((number, part)) = fields.next()? {
                let kind = match number {
                    1 => ValueKind::Bytes,
                    2 => ValueKind::Float32,
                    3 => ValueKind::Int64,
                    _ => continue,
                };
                let FieldValue::Bytes(list) = part else { continue };
                if values.kind == Some(kind) {
                    values.more.push(list);
                } else {
                    values.kind = Some(kind);
                    values.list = list;
                    values.more.clear();
                }
            }
            Ok(())
        })?;
        Ok(values)
    }

    #[inline]
    fn each(&self, mut visit: impl FnMut(u32, FieldValue<'a>) -> WalkResult<()>) -> WalkResult<()> {
        let mut list = self.list;
        let mut more = self.more.iter();
        loop {
            let mut fields = MessageFields(list);
            while let Some((number, part)) = fields.next()? {
                visit(number, part)?;
            }
            match more.next() {
                Some(next) => list = next,
                None => return Ok(()),
            }
        }
    }

    /// Visits the values of a list of bytes.
    #[inline]
    pub(super) fn bytes(&self, mut take: impl FnMut(&'a [u8])) -> WalkResult<()> {
        self.each(|number, part| {
            if let (1, FieldValue::Bytes(value)) = (number, part) {
                take(value);
            }
            Ok(())
        })
    }

    /// Visits the values of a list of floats: some at a time, four bytes each, little-endian.
    #[inline]
    pub(super) fn floats(&self, mut take: impl FnMut(&'a [u8])) -> WalkResult<()> {
        self.each(|number, part| {
            match (number, part) {
                (1, FieldValue::Bytes(packed)) if packed.len() % 4 > 0 => {
                    return Err(Malformed::new("floats are truncated", packed));
                }
                (1, FieldValue::Bytes(values) | FieldValue::Four(values)) => take(values),
                _ => {}
            }
            Ok(())
        })
    }

    /// Visits the values of a list of integers.
    #[inline]
    pub(super) fn ints(&self, mut take: impl FnMut(i64)) -> WalkResult<()> {
        self.each(|number, part| {
            match (number, part) {
                (1, FieldValue::Bytes(mut packed)) => {
                    while !packed.is_empty() {
                        take(varint(&mut packed)? as i64);
                    }
                }
                (1, FieldValue::Varint(value)) => take(value as i64),
                _ => {}
            }
            Ok(())
        })
    }

    /// The number of values.
    pub(super) fn count(&self) -> WalkResult<usize> {
        let mut count = 0;
        match self.kind {
            None => {}
            Some(ValueKind::Bytes) => self.bytes(|_| count += 1)?,
            Some(ValueKind::Float32) => self.floats(|values| count += values.len() / 4)?,
            Some(ValueKind::Int64) => self.ints(|_| count += 1)?,
        }
        Ok(count)
    }

    /// An upper bound of the bytes of the numbers, without parsing all of them.
    pub(super) fn most_bytes(&self) -> usize {
        let encoded = self.list.len() + self.more.iter().map(|list| list.len()).sum::<usize>();
        match self.kind {
            None | Some(ValueKind::Bytes) => 0,
            Some(ValueKind::Float32) => encoded,
            Some(ValueKind::Int64) => encoded * 8,
        }
    }
}

/// Visits every step of a list of features.
pub(super) fn steps<'a>(
    list: MapEntry<'a>,
    mut visit: impl FnMut(Values<'a>) -> WalkResult<()>,
) -> WalkResult<()> {
    list.each(|message| {
        let mut fields = MessageFields(message);
        while let Some((number, part)) = fields.next()? {
            if let (1, FieldValue::Bytes(feature)) = (number, part) {
                visit(Values::of(MapEntry::Message(feature))?)?;
            }
        }
        Ok(())
    })
}
