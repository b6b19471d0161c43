//! Which call may follow which.

use super::calls::Name;
use crate::error::{Error, Kind, Result};

/// Calls that may stand in the same places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallGroup {
    Order,
    Parse,
    Filter,
    Bucket,
    Decode,
    /// Steps that make the same of an image each time.
    Image,
    /// Random steps.
    RandomImage,
    Cache,
    /// `to_float` and `cast` of the image.
    Pixels,
    /// `to_float` and `cast` of other fields.
    Numbers,
    /// Functions of samples.
    Function,
    Batch,
    /// Functions of batches.
    MapBatch,
    Loader,
}

use CallGroup::{
    Batch, Bucket, Cache, Decode, Filter, Function, Image, Loader, MapBatch, Numbers, Order, Parse,
    Pixels, RandomImage,
};

/// A call (left) cannot come after any of these, whatever stands between them.
const CANNOT_FOLLOW: [(CallGroup, &[CallGroup]); 14] = [
    (Order, &[Filter, Pixels, Function, Batch]),
    (Parse, &[Decode, Function, Batch]),
    (Filter, &[Function, Batch]),
    (Bucket, &[Bucket, Function, Batch]),
    (Decode, &[Decode, Function, Batch]),
    (Image, &[Pixels, Function, Batch]),
    (RandomImage, &[Pixels, Function, Batch]),
    (Cache, &[Cache, RandomImage, Pixels, Function, Batch]),
    (Pixels, &[Pixels, Function, Batch]),
    (Numbers, &[Function, Batch]),
    (Function, &[Bucket, Batch]),
    (Batch, &[Batch]),
    (MapBatch, &[Bucket, Loader]),
    (Loader, &[Loader]),
];

/// A call (left) needs another one before it. What is said if it lacks that, and the hint. (Images need a source of
/// images, or `decode`: that depends on the source.)
const NEEDS: [(CallGroup, CallGroup, &str, &str); 2] = [
    (
        MapBatch,
        Batch,
        "map_batch needs batches",
        "call batch(size) before map_batch(fn), or map(fn) for single samples",
    ),
    (Loader, Batch, "loader: there is no batch size", "call batch(size) before loader()"),
];

impl CallGroup {
    /// Of a call about fields that are not the image.
    pub(super) fn of(name: Name) -> CallGroup {
        match name {
            Name::Shuffle
            | Name::Shard
            | Name::Interleave
            | Name::Take
            | Name::Skip
            | Name::Repeat
            | Name::Concat
            | Name::Mix => Order,
            Name::Parse => Parse,
            Name::Filter => Filter,
            Name::Bucket => Bucket,
            Name::Decode => Decode,
            Name::Resize | Name::CenterCrop => Image,
            Name::RandomCrop | Name::RandomResizedCrop | Name::Flip => RandomImage,
            Name::Cache => Cache,
            Name::ToFloat | Name::Cast => Numbers,
            Name::Map | Name::FilterFunction => Function,
            Name::Batch => Batch,
            Name::MapBatch => MapBatch,
            Name::Loader => Loader,
        }
    }

    /// Whether a call of this group may come after one of another.
    pub(super) fn may_follow(self, earlier: CallGroup) -> bool {
        CANNOT_FOLLOW.iter().all(|(group, never)| *group != self || !never.contains(&earlier))
    }
}

/// Refuses a call that cannot follow the earlier ones.
pub(super) fn check(name: Name, group: CallGroup, earlier: &[(Name, CallGroup)]) -> Result<()> {
    let last = earlier.iter().rfind(|(_, earlier)| !group.may_follow(*earlier));
    if let Some((earlier_name, earlier_group)) = last {
        return Err(refusal(name, group, *earlier_name, *earlier_group));
    }
    for (needs, needed, message, hint) in NEEDS {
        if needs == group && earlier.iter().all(|(_, had)| *had != needed) {
            return Err(Error::new(Kind::InvalidArgument, message).with_hint(hint));
        }
    }
    Ok(())
}

fn refusal(name: Name, group: CallGroup, earlier_name: Name, earlier: CallGroup) -> Error {
    let (name, earlier_name) = (name.text(), earlier_name.text());
    let (message, hint) = match (group, earlier) {
        (Pixels, Pixels) => (
            format!("{name}: the numbers were decided already"),
            "call to_float or cast once, as the last step before batch".to_owned(),
        ),
        (Cache, RandomImage) => (
            format!(
                "cache cannot follow {earlier_name}: each epoch would get the same random numbers"
            ),
            format!("call cache before {earlier_name}"),
        ),
        (Cache, Cache) => (
            "cache: there is a cache already".to_owned(),
            "leave one of them out: the system keeps files that fit into memory".to_owned(),
        ),
        (Function | MapBatch, Bucket) => (
            format!("{name} of a function cannot follow bucket"),
            "buckets are for native pipelines; leave bucket or the function out".to_owned(),
        ),
        (_, Function) => (
            format!("{name} cannot follow map or filter of a function"),
            format!("native steps come first: call {name} before map(fn)"),
        ),
        (Order, Filter) => (
            format!("{name} cannot follow filter"),
            format!("call {name} before filter: the order is decided before samples are read"),
        ),
        (Function, Batch) if name == "map" => (
            "map cannot follow batch".to_owned(),
            "map(fn) is given one sample, before batch; for batches there is map_batch(fn)"
                .to_owned(),
        ),
        (Function, Batch) => (
            format!("{name} cannot follow batch"),
            format!("{name}(fn) is given one sample, before batch"),
        ),
        (_, _) => {
            let earlier = if earlier == Pixels { "to_float or cast" } else { earlier_name };
            (
                format!("{name} cannot follow {earlier}"),
                "the order is: source, shuffle, shard, parse, decode, resize and crops, to_float or cast, batch, \
                 loader"
                    .to_owned(),
            )
        }
    };
    Error::new(Kind::InvalidArgument, message).with_hint(hint)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::{Call, Given, Settings};
    use crate::format::{Container, Type, Wanted};
    use crate::source::Contents;

    /// A call of each name; `cast` of the image and of another field.
    const EACH: &str = r#"[{"call": "shuffle"}, {"call": "shard"}, {"call": "interleave"},
        {"call": "take", "samples": 1}, {"call": "skip", "samples": 1}, {"call": "repeat", "times": 2},
        {"call": "concat", "parts": [{"shards": 1}]}, {"call": "mix", "parts": [{"shards": 1, "weight": 1}]},
        {"call": "parse", "fields": [{"name": "jpg", "of": "bytes"}, {"name": "cls", "of": "int64"}]},
        {"call": "filter", "predicate": {"op": "<", "col": "cls", "value": 5}},
        {"call": "bucket", "by": "cls", "boundaries": [5]}, {"call": "decode"}, {"call": "resize", "size": 8},
        {"call": "center_crop", "size": 8}, {"call": "random_crop", "size": 8},
        {"call": "random_resized_crop", "size": 8}, {"call": "flip"}, {"call": "to_float", "field": "image"},
        {"call": "cast", "dtype": "int16", "field": "image"}, {"call": "cast", "dtype": "int16", "field": "cls"},
        {"call": "cache", "memory": "1GiB"}, {"call": "map", "function": "f"}, {"call": "filter", "function": "f"}, {"call": "batch", "size": 2},
        {"call": "map_batch", "function": "f"}, {"call": "loader"}]"#;

    /// The call that must stand before another one.
    fn needed(call: &Call) -> Option<Name> {
        let group = CallGroup::of(call.name());
        let needed = NEEDS.iter().find(|(needs, ..)| *needs == group);
        let is_of_image =
            matches!(group, Image | RandomImage) || format!("{call:?}").contains("\"image\"");
        needed.map(|_| Name::Batch).or(is_of_image.then_some(Name::Decode))
    }

    /// Two calls, with those that they need before them.
    fn pipeline(first: &Call, second: &Call, each: &[Call]) -> Vec<Call> {
        let mut calls: Vec<Call> = Vec::new();
        for call in [first, second] {
            let missing = needed(call).filter(|name| calls.iter().all(|had| had.name() != *name));
            calls.extend(each.iter().find(|call| Some(call.name()) == missing).cloned());
            calls.push(call.clone());
        }
        calls
    }

    /// Whether each call of a pipeline may follow all that stand before it, by the table.
    fn is_allowed(calls: &[Call]) -> bool {
        let pixels = |call: &Call| format!("{call:?}").contains("\"image\"");
        let group = |call: &Call| if pixels(call) { Pixels } else { CallGroup::of(call.name()) };
        let groups: Vec<_> = calls.iter().map(group).collect();
        let may_follow = |at: usize| groups[..at].iter().all(|had| groups[at].may_follow(*had));
        (0..groups.len()).all(may_follow)
    }

    #[test]
    fn every_pair_of_calls_is_allowed_or_refused_as_the_table_says() {
        let guessed = [Wanted::new("jpg", Type::Bytes), Wanted::new("cls", Type::Int64)].into();
        let contents = Contents { container: Container::Tar, guessed, is_packed: false };
        let (given, each) = (Given::Records(contents), Call::list(EACH).unwrap());
        assert!(Name::ALL.iter().all(|name| each.iter().any(|call| call.name() == *name)));
        let mut grid = String::new();
        for second in &each {
            for first in &each {
                let calls = pipeline(first, second, &each);
                let made = Settings::new(&calls, &given);
                let groups = [first, second].map(|call| CallGroup::of(call.name()));
                // Steps of the order have rules of their own, in the plan; and a field has one type.
                if groups != [Order, Order] && (groups != [Numbers, Numbers] || first != second) {
                    assert_eq!(made.is_ok(), is_allowed(&calls), "{calls:?}: {made:?}");
                }
                grid.push(if made.is_ok() { '+' } else { '.' });
            }
            grid.push_str(&format!("  {}\n", second.name().text()));
        }
        // Columns are the first calls, in the order of the rows.
        insta::assert_snapshot!(grid);
    }
}
