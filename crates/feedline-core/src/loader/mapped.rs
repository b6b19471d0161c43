//! The state that the driver of an epoch keeps for a front that calls functions: which samples are handed over
//! together, which were, and their results. Samples have keys: the front keeps the results of its functions by key,
//! and knows nothing of slots.

use serde_json::Value;
use std::collections::{HashMap, VecDeque};

use super::by_slot::BySlot;
use super::driver::{Driver, DriverStep, PendingFault};
use super::instructions::Instruction;
use super::run::Run;
use crate::collate::BatchSamples;
use crate::engine::{self, BadSlot, Finished, Outcome, Purpose};
use crate::error::{Error, Kind};
use crate::fault::{FaultLine, Symptom};
use crate::sample::{Sample, Stage, Ticket};

/// The samples of a front with functions.
#[derive(Default)]
pub(super) struct Mapped {
    /// How many samples are handed over together.
    size: usize,
    /// Groups of samples that are handed over once complete.
    pending_parts: VecDeque<PendingPart>,
    /// The number of the first part, and of the next one that has a sample.
    first_pending: u64,
    next_part: u64,
    /// Which part a slot belongs to, until its sample is here.
    part_of: BySlot<u64>,
    next_key: u64,
    /// What was handed over, by key, until there is a result.
    unanswered: BySlot<(engine::Order, Ticket)>,
    /// What functions made, by slot.
    made: BySlot<MadeSamples>,
    /// Shapes as JSON, and their numbers.
    shapes: HashMap<String, u32>,
    described: Vec<Value>,
    /// The slots and keys of batches that are being finished.
    finishing: HashMap<u64, Vec<(u64, u64)>>,
}

/// Samples that are handed over together.
#[derive(Default)]
struct PendingPart {
    /// How many were ordered, and how many of those have not arrived.
    ordered: usize,
    awaited: usize,
    samples: Vec<(engine::Order, Sample)>,
}

/// The result of functions for a sample.
#[derive(Clone, Copy)]
struct MadeSamples {
    key: u64,
    shape: u32,
    ticket: Ticket,
}

/// Samples that are handed over once their columns are complete.
pub(super) struct PartInProgress {
    /// Their number among the planned ones; None for an additional sample.
    pub(super) number: Option<u64>,
    pub(super) gathered: BatchSamples,
    pub(super) keys: Vec<u64>,
    pub(super) may_be_batch: bool,
}

impl Mapped {
    pub(super) fn new(size: usize) -> Mapped {
        Mapped { size, ..Mapped::default() }
    }

    /// Registers samples that are being loaded.
    pub(super) fn ordered(&mut self, orders: &[engine::Order]) {
        for order in orders {
            if self.pending_parts.back().is_none_or(|part| part.ordered == self.size) {
                self.pending_parts.push_back(PendingPart::default());
            }
            let number = self.first_pending + self.pending_parts.len() as u64 - 1;
            if let Some(part) = self.pending_parts.back_mut() {
                part.ordered += 1;
                part.awaited += 1;
            }
            self.part_of.insert(order.slot, number);
        }
    }

    /// Registers that a planned sample arrived, or will not arrive.
    fn arrive(&mut self, order: engine::Order, sample: Option<Sample>) {
        let Some(number) = self.part_of.take(order.slot) else { return };
        let Some(part) = self.pending_parts.get_mut((number - self.first_pending) as usize) else {
            return;
        };
        part.awaited -= 1;
        part.samples.extend(sample.map(|sample| (order, sample)));
    }

    /// The complete pending_parts, in order. The last one may be short when nothing more is planned.
    fn take_complete(&mut self, orders_left: u64) -> Vec<PendingPart> {
        let mut complete = Vec::new();
        while let Some(part) = self.pending_parts.front()
            && part.awaited == 0
            && (part.ordered == self.size || orders_left == 0)
        {
            self.first_pending += 1;
            complete.extend(self.pending_parts.pop_front());
        }
        complete
    }

    fn hand(
        &mut self,
        samples: Vec<(engine::Order, Sample)>,
        number: Option<u64>,
    ) -> PartInProgress {
        let may_be_batch = number.is_some();
        let first = samples.first().map_or(0, |(order, _)| order.slot);
        let mut keys = Vec::with_capacity(samples.len());
        let mut given = Vec::with_capacity(samples.len());
        for (order, sample) in samples {
            keys.push(self.next_key);
            self.unanswered.insert(self.next_key, (order, sample.ticket));
            self.next_key += 1;
            given.push(sample);
        }
        let gathered = BatchSamples { samples: given, number: first, is_scattered: false };
        PartInProgress { number, gathered, keys, may_be_batch }
    }

    pub(super) fn move_made(&mut self, from: u64, to: u64) -> Option<u64> {
        let left = self.made.take(to).map(|made| made.key);
        if let Some(made) = self.made.take(from) {
            self.made.insert(to, made);
        }
        left
    }

    /// Forgets the result for a slot.
    pub(super) fn forget(&mut self, slot: u64) -> Option<u64> {
        self.made.take(slot).map(|made| made.key)
    }

    pub(super) fn take(&mut self, slots: impl Iterator<Item = u64>) -> Vec<u64> {
        slots.filter_map(|slot| self.forget(slot)).collect()
    }

    pub(super) fn finish(&mut self, batch: engine::UnfinishedBatch) -> Instruction {
        let engine::UnfinishedBatch { number, samples } = batch;
        let keys = samples.iter().filter_map(|(slot, _)| Some((*slot, self.made.get(*slot)?.key)));
        let slots: Vec<_> = keys.collect();
        let keys = slots.iter().map(|(_, key)| *key).collect();
        self.finishing.insert(number, slots);
        Instruction::Finish { number, keys }
    }

    /// The error for a sample that does not fit the sample of another slot in its batch.
    pub(super) fn misfit(&self, run: &Run, slot: u64, like: u64) -> Option<PendingFault> {
        let (odd, norm) = (self.made.get(slot)?, self.made.get(like)?);
        let described = |made: &MadeSamples| self.described.get(made.shape as usize);
        let differs = difference(described(norm)?, described(odd)?, "");
        let (index, other) = (odd.ticket.index, norm.ticket.index);
        let message = format!("sample {index} does not fit sample {other} of its batch: {differs}");
        let error = Error::new(Kind::ShapeMismatch, message)
            .at(run.shared.source.location(index))
            .with_hint("return arrays of equal shape, or use batch(pad=True)");
        Some(run.pending(crate::fault::Fault::new(odd.ticket, Stage::Collate, error)))
    }
}

impl Driver {
    /// Adds a sample for which functions are to be called. Returns what can be handed over at once.
    pub(super) fn hand(&mut self, order: engine::Order, sample: Sample) -> Option<PartInProgress> {
        let current = self.engine.current(order);
        let mapped = self.mapped.as_mut()?;
        if order.purpose == Purpose::Planned && current == order {
            mapped.arrive(order, Some(sample));
            return None;
        }
        mapped.arrive(order, None);
        // The sample was moved, so the engine knows it by the order that it has given out.
        Some(mapped.hand(vec![(order, sample)], None))
    }

    /// Registers that a planned sample was bad or was dropped by a filter.
    pub(super) fn drop_from_part(&mut self, order: engine::Order) {
        if let Some(mapped) = &mut self.mapped
            && order.purpose == Purpose::Planned
        {
            mapped.arrive(order, None);
        }
    }

    /// Hands over all complete pending_parts.
    pub(super) fn hand_complete(&mut self, steps: &mut Vec<DriverStep>) {
        let left = self.engine.orders_left();
        let Some(mapped) = &mut self.mapped else { return };
        for part in mapped.take_complete(left) {
            if part.samples.is_empty() {
                continue;
            }
            let is_whole = part.samples.len() == part.ordered;
            let number = mapped.next_part;
            mapped.next_part += 1;
            let mut handing = mapped.hand(part.samples, Some(number));
            handing.may_be_batch &= is_whole;
            steps.push(DriverStep::Hand(Box::new(handing)));
        }
    }

    pub(super) fn mapped_shape(&mut self, described: &str) -> u32 {
        let Some(mapped) = &mut self.mapped else { return 0 };
        if let Some(shape) = mapped.shapes.get(described) {
            return *shape;
        }
        let shape = mapped.described.len() as u32;
        mapped.described.push(serde_json::from_str(described).unwrap_or_default());
        mapped.shapes.insert(described.to_owned(), shape);
        shape
    }

    pub(super) fn mapped_good(&mut self, keys: &[u64], shape: u32) {
        for key in keys {
            let Some(mapped) = &mut self.mapped else { return };
            let Some((order, ticket)) = mapped.unanswered.take(*key) else { continue };
            let slot = self.engine.current(order).slot;
            mapped.made.insert(slot, MadeSamples { key: *key, shape, ticket });
            self.engine.add_result(order, Outcome::Good { bucket: 0, shape }, &mut self.actions);
        }
    }

    pub(super) fn mapped_filtered(&mut self, keys: &[u64]) {
        for key in keys {
            let Some(mapped) = &mut self.mapped else { return };
            let Some((order, _)) = mapped.unanswered.take(*key) else { continue };
            self.count_as_filtered(order);
            self.engine.add_result(order, Outcome::Filtered, &mut self.actions);
        }
    }

    pub(super) fn mapped_bad(
        &mut self,
        run: &Run,
        key: u64,
        symptom: Symptom,
        line: FaultLine,
    ) -> u64 {
        let found = self.mapped.as_mut().and_then(|mapped| mapped.unanswered.take(key));
        let Some((order, _)) = found else { return 0 };
        let policy_action = run.policy_action_for(&symptom, &line);
        let fault = self.add_fault(PendingFault::reported(symptom, line));
        self.engine.add_result(order, Outcome::Bad { fault, policy_action }, &mut self.actions);
        fault
    }

    pub(super) fn mapped_finished(
        &mut self,
        run: &Run,
        number: u64,
        bad: Vec<(u64, Symptom, FaultLine)>,
    ) -> Vec<u64> {
        let finishing = self.mapped.as_mut().and_then(|mapped| mapped.finishing.remove(&number));
        let Some(slots) = finishing else { return Vec::new() };
        let mut found = Vec::with_capacity(bad.len());
        for (key, symptom, line) in bad {
            let Some((slot, _)) = slots.iter().find(|(_, other)| *other == key) else { continue };
            let policy_action = run.policy_action_for(&symptom, &line);
            let mut pending = PendingFault::reported(symptom, line);
            pending.slot = Some(*slot);
            let fault = self.add_fault(pending);
            found.push(BadSlot { slot: *slot, fault, policy_action });
        }
        let faults = found.iter().map(|bad| bad.fault).collect();
        let finished = if found.is_empty() { Finished::Good } else { Finished::Bad(found) };
        self.engine.finished(number, finished);
        faults
    }
}

/// The difference of two shapes, of samples or of parts of them. A dict is an object, a tuple a list, anything else a
/// text that describes it.
fn difference(ours: &Value, theirs: &Value, place: &str) -> String {
    let name = if place.is_empty() { "it" } else { place };
    match (ours, theirs) {
        (Value::Object(ours), Value::Object(theirs)) => {
            let listed = |keys: Vec<&String>| {
                let keys: Vec<_> = keys.into_iter().map(|key| quoted(key)).collect();
                keys.join(", ")
            };
            let missing: Vec<_> = ours.keys().filter(|key| !theirs.contains_key(*key)).collect();
            let extra: Vec<_> = theirs.keys().filter(|key| !ours.contains_key(*key)).collect();
            let said = [("lacks", missing), ("has", extra)].into_iter();
            let said = said.filter(|(_, keys)| !keys.is_empty());
            let said: Vec<_> =
                said.map(|(word, keys)| format!("{word} {}", listed(keys))).collect();
            if !said.is_empty() {
                return format!("{name} {}", said.join(" and "));
            }
            let differing = ours.iter().find(|(key, our)| theirs.get(*key) != Some(our));
            if let Some((key, our)) = differing {
                let inner = match place.is_empty() {
                    true => key.clone(),
                    false => format!("{place}[{}]", quoted(key)),
                };
                return difference(our, &theirs[key], &inner);
            }
        }
        (Value::Array(ours), Value::Array(theirs)) if ours.len() == theirs.len() => {
            let mut pairs = ours.iter().zip(theirs).enumerate();
            if let Some((at, (our, their))) = pairs.find(|(_, (our, their))| our != their) {
                return difference(our, their, &format!("{place}[{at}]"));
            }
        }
        _ => {}
    }
    format!("{name} is {}, not {}", described(theirs), described(ours))
}

fn quoted(key: &str) -> String {
    format!("'{}'", key.escape_debug())
}

fn described(shape: &Value) -> String {
    match shape {
        Value::Object(parts) if parts.is_empty() => "an empty dict".to_owned(),
        Value::Object(parts) => {
            let keys: Vec<_> = parts.keys().map(|key| quoted(key)).collect();
            format!("a dict with {}", keys.join(", "))
        }
        Value::Array(parts) => format!("a tuple of {}", parts.len()),
        Value::String(text) => text.clone(),
        Value::Null | Value::Bool(_) | Value::Number(_) => "of another kind".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_difference_is_described_with_its_place() {
        let (array, number) = ("an array", "a number");
        let table = [
            (json!({"a": number}), json!({"a": number, "b": number}), "it has 'b'"),
            (json!({"m": {"k": number}}), json!({"m": {}}), "m lacks 'k'"),
            (json!({"m": {"k": number}}), json!({"m": {"z": 1}}), "m lacks 'k' and has 'z'"),
            (
                json!({"m": {"k": array}}),
                json!({"m": {"k": number}}),
                "m['k'] is a number, not an array",
            ),
            (json!([{"k": array}]), json!([{"k": number}]), "[0]['k'] is a number, not an array"),
            (json!([number]), json!([number, number]), "it is a tuple of 2, not a tuple of 1"),
            (json!({"m": {}}), json!({"m": array}), "m is an array, not an empty dict"),
            (json!({"a\n": 1}), json!(["b"]), "it is a tuple of 1, not a dict with 'a\\n'"),
        ];
        for (ours, theirs, text) in table {
            assert_eq!(difference(&ours, &theirs, ""), text);
        }
    }
}
