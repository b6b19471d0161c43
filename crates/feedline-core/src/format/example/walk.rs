//! Protobuf where it lies: fields one after another, and the few messages of tf.train.Example. Borrows
//! everything and copies nothing.
//!
//! It follows protobuf, not TensorFlow's own parser, where these differ: messages that come twice are
//! merged, of a oneof the last member counts, packed and unpacked runs may be mixed, what is unknown is
//! skipped.

/// Groups inside one another beyond which bytes are refused, as protobuf does.
const DEEPEST: usize = 100;

/// Bytes that are no protobuf.
#[derive(Debug)]
pub(super) struct Malformed {
    pub(super) what: &'static str,
    /// In memory, of the byte where that was seen: the caller that has the whole record knows which one it is.
    address: usize,
}

impl Malformed {
    #[cold]
    fn new(what: &'static str, at: &[u8]) -> Malformed {
        Malformed { what, address: at.as_ptr() as usize }
    }

    /// Which byte of the record that is.
    pub(super) fn offset(&self, record: &[u8]) -> usize {
        self.address.saturating_sub(record.as_ptr() as usize).min(record.len())
    }
}

type Result<T> = std::result::Result<T, Malformed>;

/// What stands under the number of a field.
#[derive(Clone, Copy, Debug)]
pub(super) enum Part<'a> {
    Varint(u64),
    Four(&'a [u8]),
    Bytes(&'a [u8]),
    /// Something that no message here has.
    Unknown,
}

/// The fields of a message.
pub(super) struct Fields<'a>(pub(super) &'a [u8]);

impl<'a> Fields<'a> {
    /// The next field: its number, and what stands there.
    #[inline]
    pub(super) fn next(&mut self) -> Result<Option<(u32, Part<'a>)>> {
        if self.0.is_empty() {
            return Ok(None);
        }
        let start = self.0;
        let (number, wire) = self.tag()?;
        let part = match wire {
            0 => Part::Varint(varint(&mut self.0)?),
            1 => {
                self.take(8)?;
                Part::Unknown
            }
            2 => {
                let length = small_varint(&mut self.0)?;
                Part::Bytes(self.take(length)?)
            }
            3 => {
                self.skip_group(number)?;
                Part::Unknown
            }
            5 => Part::Four(self.take(4)?),
            4 => return Err(Malformed::new("a group ends that did not begin", start)),
            _ => return Err(Malformed::new("there is no such type of a field", start)),
        };
        Ok(Some((number, part)))
    }

    #[inline]
    fn tag(&mut self) -> Result<(u32, u8)> {
        let start = self.0;
        let tag = small_varint(&mut self.0)?;
        match u32::try_from(tag) {
            Ok(tag) if tag >> 3 > 0 => Ok((tag >> 3, (tag & 7) as u8)),
            Ok(_) | Err(_) => Err(Malformed::new("a field has no valid number", start)),
        }
    }

    #[inline]
    fn take(&mut self, length: u64) -> Result<&'a [u8]> {
        if length > self.0.len() as u64 {
            return Err(Malformed::new("a field is longer than what holds it", self.0));
        }
        let (taken, rest) = self.0.split_at(length as usize);
        self.0 = rest;
        Ok(taken)
    }

    #[cold]
    fn skip_group(&mut self, number: u32) -> Result<()> {
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
                4 => return Err(Malformed::new("a group ends that did not begin", start)),
                5 => {
                    self.take(4)?;
                }
                _ => return Err(Malformed::new("there is no such type of a field", start)),
            }
        }
        Ok(())
    }
}

/// A value. Of one that has more than 64 bits the lowest 64 count, as for protobuf: some writers fill the
/// last byte of a negative number with ones.
#[inline]
fn varint(bytes: &mut &[u8]) -> Result<u64> {
    any_varint::<true>(bytes)
}

/// The number of a field, or a length, which never has as many bits.
#[inline]
fn small_varint(bytes: &mut &[u8]) -> Result<u64> {
    any_varint::<false>(bytes)
}

#[inline]
fn any_varint<const MAY_OVERFLOW: bool>(bytes: &mut &[u8]) -> Result<u64> {
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
fn long_varint<const MAY_OVERFLOW: bool>(bytes: &mut &[u8]) -> Result<u64> {
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

/// What a map holds under a key: the bytes of a message.
#[derive(Clone, Copy, Debug)]
pub(super) enum Held<'a> {
    Nothing,
    Message(&'a [u8]),
    /// The entry of the map, whose message comes in several parts.
    Parts(&'a [u8]),
}

impl<'a> Held<'a> {
    /// Every part of the message; the message is what they are one behind another.
    #[inline]
    fn each(self, mut visit: impl FnMut(&'a [u8]) -> Result<()>) -> Result<()> {
        match self {
            Held::Nothing => Ok(()),
            Held::Message(message) => visit(message),
            Held::Parts(entry) => {
                let mut fields = Fields(entry);
                while let Some((number, part)) = fields.next()? {
                    if let (2, Part::Bytes(message)) = (number, part) {
                        visit(message)?;
                    }
                }
                Ok(())
            }
        }
    }
}

/// Every entry of a map from names to messages, in order; of equal names the last one counts.
#[inline]
pub(super) fn entries<'a>(map: &'a [u8], mut visit: impl FnMut(&'a [u8], Held<'a>)) -> Result<()> {
    let mut fields = Fields(map);
    while let Some((number, part)) = fields.next()? {
        let (1, Part::Bytes(entry)) = (number, part) else { continue };
        let (mut key, mut held) = (&entry[..0], Held::Nothing);
        let mut inner = Fields(entry);
        while let Some((number, part)) = inner.next()? {
            match (number, part, held) {
                (1, Part::Bytes(bytes), _) => key = bytes,
                (2, Part::Bytes(message), Held::Nothing) => held = Held::Message(message),
                (2, Part::Bytes(_), _) => held = Held::Parts(entry),
                _ => {}
            }
        }
        visit(key, if let Held::Nothing = held { Held::Message(&entry[..0]) } else { held });
    }
    Ok(())
}

/// What the values of a feature are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Bytes,
    Float32,
    Int64,
}

impl Kind {
    pub(super) fn name(self) -> &'static str {
        match self {
            Kind::Bytes => "bytes",
            Kind::Float32 => "float32",
            Kind::Int64 => "int64",
        }
    }
}

/// The list of values of a feature, still encoded.
#[derive(Debug)]
pub(super) struct Values<'a> {
    /// None where the feature has no list.
    pub(super) kind: Option<Kind>,
    list: &'a [u8],
    /// Where the list comes in several parts, the others.
    more: Vec<&'a [u8]>,
}

impl<'a> Values<'a> {
    /// The list of a feature.
    #[inline]
    pub(super) fn of(feature: Held<'a>) -> Result<Values<'a>> {
        let mut values = Values { kind: None, list: &[], more: Vec::new() };
        feature.each(|message| {
            let mut fields = Fields(message);
            while let Some((number, part)) = fields.next()? {
                let kind = match number {
                    1 => Kind::Bytes,
                    2 => Kind::Float32,
                    3 => Kind::Int64,
                    _ => continue,
                };
                let Part::Bytes(list) = part else { continue };
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
    fn each(&self, mut visit: impl FnMut(u32, Part<'a>) -> Result<()>) -> Result<()> {
        let mut list = self.list;
        let mut more = self.more.iter();
        loop {
            let mut fields = Fields(list);
            while let Some((number, part)) = fields.next()? {
                visit(number, part)?;
            }
            match more.next() {
                Some(next) => list = next,
                None => return Ok(()),
            }
        }
    }

    /// The values of a list of bytes.
    #[inline]
    pub(super) fn bytes(&self, mut take: impl FnMut(&'a [u8])) -> Result<()> {
        self.each(|number, part| {
            if let (1, Part::Bytes(value)) = (number, part) {
                take(value);
            }
            Ok(())
        })
    }

    /// The values of a list of floats: some at a time, four bytes each, the lowest first.
    #[inline]
    pub(super) fn floats(&self, mut take: impl FnMut(&'a [u8])) -> Result<()> {
        self.each(|number, part| {
            match (number, part) {
                (1, Part::Bytes(packed)) if packed.len() % 4 > 0 => {
                    return Err(Malformed::new("floats are truncated", packed));
                }
                (1, Part::Bytes(values) | Part::Four(values)) => take(values),
                _ => {}
            }
            Ok(())
        })
    }

    /// The values of a list of whole numbers.
    #[inline]
    pub(super) fn ints(&self, mut take: impl FnMut(i64)) -> Result<()> {
        self.each(|number, part| {
            match (number, part) {
                (1, Part::Bytes(mut packed)) => {
                    while !packed.is_empty() {
                        take(varint(&mut packed)? as i64);
                    }
                }
                (1, Part::Varint(value)) => take(value as i64),
                _ => {}
            }
            Ok(())
        })
    }

    /// How many there are.
    pub(super) fn count(&self) -> Result<usize> {
        let mut count = 0;
        match self.kind {
            None => {}
            Some(Kind::Bytes) => self.bytes(|_| count += 1)?,
            Some(Kind::Float32) => self.floats(|values| count += values.len() / 4)?,
            Some(Kind::Int64) => self.ints(|_| count += 1)?,
        }
        Ok(count)
    }

    /// No fewer bytes than the numbers of the list take, without a look at them all.
    pub(super) fn most_bytes(&self) -> usize {
        let encoded = self.list.len() + self.more.iter().map(|list| list.len()).sum::<usize>();
        match self.kind {
            None | Some(Kind::Bytes) => 0,
            Some(Kind::Float32) => encoded,
            Some(Kind::Int64) => encoded * 8,
        }
    }
}

/// Every step of a list of features.
pub(super) fn steps<'a>(
    list: Held<'a>,
    mut visit: impl FnMut(Values<'a>) -> Result<()>,
) -> Result<()> {
    list.each(|message| {
        let mut fields = Fields(message);
        while let Some((number, part)) = fields.next()? {
            if let (1, Part::Bytes(feature)) = (number, part) {
                visit(Values::of(Held::Message(feature))?)?;
            }
        }
        Ok(())
    })
}
