//! Puts the engine through random epochs: results in any order, faults of every kind anywhere, retries,
//! replacements that are bad as well, samples that are bad only when their batch is finished, filters, buckets, a
//! consumer that leaves and comes back at any batch.
//! What it does is compared with a plain model that makes one sample after another.
//!
//! A seed that fails is printed; `FEEDLINE_SEED=...` runs it alone.
#![expect(clippy::wildcard_enum_match_arm, reason = "the model is short, to be read at a glance")]

use core::ops::Range;
use core::time::Duration;
use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::random::Random;

/// Epochs in one run of the tests.
const EPOCHS: u64 = 200_000;

/// What is the matter with a sample, whenever it is made.
#[derive(Clone, Copy, Debug)]
enum Nature {
    Good { bucket: u32, shape: u32 },
    Filtered,
    Bad(Wish),
}

#[derive(Clone, Debug)]
struct World {
    settings: Settings,
    natures: Vec<Nature>,
    /// How often making a sample fails before it shows its nature.
    flaky: Vec<u32>,
    /// What the policy says about samples that are bad only when their batch is finished.
    unfit: Vec<Option<Wish>>,
    /// Whether finishing finds one bad sample at a time.
    finds_one: bool,
    /// The sizes of all batches, if they are given.
    sizes: Vec<u64>,
}

impl World {
    fn new(random: &mut Random) -> World {
        let most = if random.below(4) == 0 { 70 } else { 24 };
        let samples = random.below(most);
        let has_filter = random.below(3) == 0;
        let has_shapes = random.below(4) == 0;
        let membership = match random.below(4) {
            0 => Membership::Buckets((0..=random.below(3)).map(|_| 1 + random.below(5)).collect()),
            1 => Membership::Gathered,
            _ => Membership::Fixed,
        };
        let buckets = match &membership {
            Membership::Buckets(sizes) => sizes.len() as u64,
            Membership::Fixed | Membership::Gathered => 1,
        };
        let mut fills = vec![Fill::FromEnd, Fill::FromEndAndRepeat];
        if membership == Membership::Fixed {
            fills.push(Fill::Never);
        }
        let limit = match random.below(4) {
            0 => Some(Limit::Count(random.below(8))),
            1 => Some(Limit::Share(random.below(10) as f64 / 10.0)),
            _ => None,
        };
        let (plan, sizes) = match random.below(4) {
            0 if membership == Membership::Fixed => (Plan::Given, sizes(samples, random)),
            1 if membership == Membership::Fixed => (Plan::Open, sizes(samples, random)),
            _ => (Plan::Known, Vec::new()),
        };
        if plan == Plan::Open {
            fills = vec![Fill::Never];
        }
        let moves = match random.below(2) {
            0 if membership == Membership::Fixed => Moves::Remade { ahead: 1 + random.below(6) },
            _ => Moves::Sample,
        };
        let finishes = random.below(2) == 0;
        let settings = Settings {
            samples,
            batch_size: 1 + random.below(8),
            plan,
            moves,
            drop_last: random.below(2) == 0,
            fill: fills[random.below(fills.len() as u64) as usize],
            membership,
            // What a user gave for a sample that does not fit: the driver has it when that is recorded, and a batch
            // is finished before.
            misfit: has_shapes
                .then(|| wish(random))
                .filter(|wish| !finishes || *wish != Wish::Substitute),
            finishes,
            limit,
            window: 1 + random.below(30),
            epoch: random.below(3),
        };
        // From none to all of them.
        let bad = [0, 5, 30, 100][random.below(4) as usize];
        let mut nature = || match random.below(100) {
            number if number < bad => Nature::Bad(wish(random)),
            number if has_filter && number % 5 == 0 => Nature::Filtered,
            _ => Nature::Good {
                bucket: random.below(buckets) as u32,
                shape: u32::from(has_shapes && random.below(6) == 0),
            },
        };
        let natures = (0..samples).map(|_| nature()).collect();
        let flaky = (0..samples).map(|_| random.below(12).saturating_sub(9) as u32).collect();
        let unfit_share = [0, 10, 40, 100][random.below(4) as usize];
        let mut unfit = || (random.below(100) < unfit_share).then(|| wish(random));
        let unfit = (0..samples).map(|_| unfit()).collect();
        World { settings, natures, flaky, unfit, finds_one: random.below(2) == 0, sizes }
    }

    /// The settings of an engine before its first batch is given.
    fn first_settings(&self) -> Settings {
        let samples = if self.settings.plan == Plan::Known { self.settings.samples } else { 0 };
        Settings { samples, ..self.settings.clone() }
    }

    /// The slots of the batch with a slot, as they are planned.
    fn batch_of(&self, slot: u64) -> Range<u64> {
        let Settings { samples, batch_size, plan, .. } = self.settings;
        if plan == Plan::Known {
            let first = slot / batch_size * batch_size;
            return first..(first + batch_size).min(samples);
        }
        let mut first = 0;
        for size in &self.sizes {
            if slot < first + size {
                return first..first + size;
            }
            first += size;
        }
        first..first
    }

    /// The samples that one in a slot can be replaced by.
    fn replacements(&self, slot: u64) -> u64 {
        match self.settings.plan {
            Plan::Known | Plan::Given => self.settings.samples,
            Plan::Open => self.batch_of(slot).end,
        }
    }

    /// What finishing finds in these slots. What the user gave for a bad sample is good.
    fn find_unfit(
        &self,
        samples: &[(u64, u64)],
        is_substituted: impl Fn(u64) -> bool,
    ) -> Vec<BadSlot> {
        let bad = samples.iter().filter(|(slot, _)| !is_substituted(*slot));
        let bad = bad.filter_map(|(slot, sequence)| {
            let wish = self.unfit[*sequence as usize]?;
            Some(BadSlot { slot: *slot, fault: (slot + 1) << 32 | sequence, wish })
        });
        bad.take(if self.finds_one { 1 } else { usize::MAX }).collect()
    }

    fn outcome(&self, order: Order, slot: u64, attempt: u32) -> Outcome {
        let fault = (slot + 1) << 32 | order.sequence;
        if attempt < self.flaky[order.sequence as usize] {
            return Outcome::Bad { fault, wish: Wish::Retry(Duration::from_secs(1)) };
        }
        match self.natures[order.sequence as usize] {
            Nature::Good { bucket, shape } => Outcome::Good { bucket, shape },
            Nature::Filtered => Outcome::Filtered,
            Nature::Bad(wish) => Outcome::Bad { fault, wish },
        }
    }
}

/// Batches of any size with that many samples.
fn sizes(samples: u64, random: &mut Random) -> Vec<u64> {
    let mut sizes = Vec::new();
    let mut left = samples;
    while left > 0 {
        sizes.push((1 + random.below(8)).min(left));
        left -= sizes[sizes.len() - 1];
    }
    sizes
}

fn wish(random: &mut Random) -> Wish {
    match random.below(24) {
        0 => Wish::Raise,
        1..=5 => Wish::Replace,
        6 => Wish::Substitute,
        _ => Wish::Skip,
    }
}

/// What an epoch shows to the outside.
#[derive(Clone, Debug, PartialEq)]
enum Seen {
    /// A batch, as the sequences of its samples, and how many of them are repetitions.
    Batch(Vec<u64>, u64),
    Verdict(Shown, Verdict),
    Replaced(Shown, u64),
    Stop(&'static str, Shown),
    End(Account),
}

/// A fault, as the sequence of its sample, and whether it only does not fit to its batch.
type Shown = (u64, bool);

fn batches(seen: &[Seen]) -> Vec<(Vec<u64>, u64)> {
    let batch = |seen: &Seen| match seen {
        Seen::Batch(samples, repeated) => Some((samples.clone(), *repeated)),
        Seen::Verdict(..) | Seen::Replaced(..) | Seen::Stop(..) | Seen::End(_) => None,
    };
    seen.iter().filter_map(batch).collect()
}

// ---- the plain model ----

/// Makes one sample after another, as someone would who has all the time in the world.
struct Model<'a> {
    world: &'a World,
    /// Whether each sample that was judged was bad.
    judged: Vec<bool>,
    /// Samples before this one were not used to fill slots.
    end: u64,
    repetition: u64,
    useless: u64,
    /// Repetitions since the last batch that were bad when theirs was finished.
    in_vain: u64,
    /// Repetitions that were gathered.
    repeated: u64,
    /// What the user gave for bad samples, and those that replace others: buckets and places there.
    given: BTreeSet<(usize, u64)>,
    replaced: BTreeSet<(usize, u64)>,
    account: Account,
    seen: Vec<Seen>,
}

/// A batch with fixed slots.
struct Slots {
    first: u64,
    /// Slots before this one were judged.
    judged: u64,
    norm: Option<u32>,
    used: Vec<Used>,
    /// What is tried next, and in which slot.
    queue: VecDeque<(u64, Try)>,
    /// Slots with what the user gave, and those with another sample, until their batch is finished.
    substituted: BTreeSet<u64>,
    tried: BTreeMap<u64, Try>,
}

#[derive(Clone, Copy)]
enum Try {
    Fill(u64),
    Repetition(u64),
    Replacement { fault: Shown, tried: u32, bad: u32 },
}

/// The run is over.
struct Over;

/// What is in a slot after all: a sequence, and whether it is a repetition.
type Used = Option<(u64, bool)>;

impl Model<'_> {
    fn run(world: &World) -> Vec<Seen> {
        let due = world.settings.samples;
        let account = Account { due, ..Account::default() };
        let (judged, seen) = (Vec::new(), Vec::new());
        let mut model = Model {
            world,
            judged,
            end: due,
            repetition: 0,
            useless: 0,
            in_vain: 0,
            repeated: 0,
            given: BTreeSet::new(),
            replaced: BTreeSet::new(),
            account,
            seen,
        };
        let over = match &world.settings.membership {
            Membership::Fixed => model.fixed(),
            Membership::Gathered => model.gathered(&[world.settings.batch_size], false),
            Membership::Buckets(sizes) => model.gathered(sizes, true),
        };
        if over.is_ok() {
            model.seen.push(Seen::End(model.account));
        }
        model.seen
    }

    fn nature(&self, sequence: u64) -> Nature {
        self.world.natures[sequence as usize]
    }

    /// Whether there are too many faults now, counted anew from all that was judged.
    fn is_too_many(&self) -> bool {
        let Settings { limit, window, samples, plan, .. } = self.world.settings;
        let faults = |judged: &[bool]| judged.iter().filter(|is_bad| **is_bad).count() as f64;
        match limit {
            None => false,
            Some(Limit::Count(count)) => faults(&self.judged) > count as f64,
            Some(Limit::Share(share)) if samples < window && plan != Plan::Open => {
                faults(&self.judged) > (share * samples as f64).floor()
            }
            Some(Limit::Share(share)) => {
                let first = self.judged.len().checked_sub(window as usize);
                first.is_some_and(|first| {
                    faults(&self.judged[first..]) > (share * window as f64).floor()
                })
            }
        }
    }

    /// What is wrong with a sample in a batch of that shape.
    fn fault(&self, sequence: u64, norm: Option<u32>) -> Option<(Shown, Wish)> {
        match (self.nature(sequence), self.world.settings.misfit, norm) {
            (Nature::Bad(wish), ..) => Some(((sequence, false), wish)),
            (Nature::Good { shape, .. }, Some(wish), Some(norm)) if shape != norm => {
                Some(((sequence, true), wish))
            }
            _ => None,
        }
    }

    fn verdict(&mut self, fault: Shown, wish: Wish) -> Result<Verdict, Over> {
        self.judged.push(true);
        if wish == Wish::Raise {
            self.seen.push(Seen::Verdict(fault, Verdict::Raise));
            self.seen.push(Seen::Stop("raised", fault));
            return Err(Over);
        }
        if self.is_too_many() {
            self.seen.push(Seen::Stop("too many", fault));
            return Err(Over);
        }
        let verdict = match wish {
            Wish::Skip => Verdict::Skip,
            Wish::Replace => Verdict::Replace,
            _ => Verdict::Substitute,
        };
        match verdict {
            Verdict::Skip => self.account.skipped += 1,
            _ => self.account.replaced += 1,
        }
        self.seen.push(Seen::Verdict(fault, verdict));
        Ok(verdict)
    }

    /// Finds the sample that replaces a bad one.
    fn replacement(
        &mut self,
        slot: u64,
        fault: Shown,
        norm: &mut Option<u32>,
    ) -> Result<u64, Over> {
        let Settings { epoch, samples, .. } = self.world.settings;
        let mut bad = 0;
        for tried in 0..u64::from(MAX_REPLACEMENTS) {
            let sequence = Random::keyed(&[epoch, slot, tried]).below(samples);
            match (self.fault(sequence, *norm), self.nature(sequence)) {
                (Some((other, Wish::Raise)), _) => {
                    self.verdict(other, Wish::Raise)?;
                }
                (Some(_), _) => bad += 1,
                (None, Nature::Good { shape, .. }) => {
                    norm.get_or_insert(shape);
                    self.seen.push(Seen::Replaced(fault, sequence));
                    return Ok(sequence);
                }
                (None, _) => {}
            }
            if bad == MAX_BAD_REPLACEMENTS {
                break;
            }
        }
        self.seen.push(Seen::Stop("no replacement", fault));
        Err(Over)
    }

    fn majority(&self, sequences: impl Iterator<Item = u64>) -> Option<u32> {
        let shapes: Vec<_> = sequences
            .filter_map(|sequence| match self.nature(sequence) {
                Nature::Good { shape, .. } => Some(shape),
                Nature::Filtered | Nature::Bad(_) => None,
            })
            .collect();
        let count = |shape| shapes.iter().filter(|other| **other == shape).count();
        let most = shapes.iter().map(|shape| count(*shape)).max()?;
        shapes.iter().copied().find(|shape| count(*shape) == most)
    }

    fn deliver(&mut self, used: &[Used], is_full: bool) {
        let samples: Vec<_> = used.iter().flatten().map(|(sequence, _)| *sequence).collect();
        let repeated = used.iter().flatten().filter(|(_, is_repetition)| *is_repetition).count();
        let (count, repeated) = (samples.len() as u64, repeated as u64);
        if samples.is_empty() {
        } else if self.world.settings.drop_last && !is_full {
            self.account.dropped += count - repeated;
            self.account.repeated -= repeated;
        } else {
            self.in_vain = 0;
            self.account.delivered += count;
            self.seen.push(Seen::Batch(samples, repeated));
        }
    }

    /// Finishes a batch that was gathered: what is bad after all is left out of it.
    fn finish_gathered(&mut self, bucket: usize, used: &[Used], is_full: bool) -> Result<(), Over> {
        let Settings { finishes, drop_last, .. } = self.world.settings;
        let mut used = used.to_vec();
        let given = std::mem::take(&mut self.given);
        let (mut substituted, others): (BTreeSet<_>, _) =
            given.into_iter().partition(|(other, _)| *other == bucket);
        self.given = others;
        let replaced = self.replaced.clone();
        self.replaced.retain(|(other, _)| *other != bucket);
        loop {
            if !finishes || (drop_last && !is_full) {
                break;
            }
            let samples = (0..).zip(&used);
            let samples: Vec<_> = samples.filter_map(|(at, used)| Some((at, (*used)?.0))).collect();
            let bad = self.world.find_unfit(&samples, |at| substituted.contains(&(bucket, at)));
            if bad.is_empty() {
                break;
            }
            for BadSlot { slot: at, wish, .. } in bad {
                let (sequence, is_repetition) = used[at as usize].expect("it was looked at");
                if is_repetition && wish == Wish::Skip {
                    self.account.repeated -= 1;
                    self.repeated -= 1;
                    self.in_vain += 1;
                    used[at as usize] = None;
                    continue;
                }
                if !is_repetition && !replaced.contains(&(bucket, at)) {
                    let last = self.judged.iter().rposition(|is_bad| !is_bad).expect("it was good");
                    self.judged.remove(last);
                }
                match self.verdict((sequence, false), wish)? {
                    Verdict::Substitute => {
                        substituted.insert((bucket, at));
                    }
                    Verdict::Replace => {
                        self.seen.push(Seen::Stop("no replacement", (sequence, false)));
                        return Err(Over);
                    }
                    _ => used[at as usize] = None,
                }
            }
            if drop_last && used.contains(&None) {
                break;
            }
        }
        let is_full = is_full && !used.contains(&None);
        self.deliver(&used, is_full);
        Ok(())
    }

    fn fixed(&mut self) -> Result<(), Over> {
        let Settings { samples, batch_size, fill, plan, .. } = self.world.settings;
        let repeats = fill == Fill::FromEndAndRepeat;
        let mut first = 0;
        while first < if repeats { samples } else { self.end } {
            let last = self.world.batch_of(first).end;
            let full = if plan == Plan::Known { batch_size } else { last - first };
            let mut batch = Slots {
                first,
                judged: first,
                norm: self.majority(first..last.min(self.end)),
                used: vec![None; (last - first) as usize],
                queue: VecDeque::new(),
                substituted: BTreeSet::new(),
                tried: BTreeMap::new(),
            };
            for slot in first..last {
                batch.judged = slot + 1;
                if slot < self.end {
                    self.judge_own(&mut batch, slot, slot)?;
                } else {
                    self.repeat(&mut batch, slot);
                }
            }
            loop {
                while let Some(try_) = batch.queue.pop_front() {
                    self.judge_try(&mut batch, try_)?;
                }
                if !self.world.settings.finishes || self.finish(&mut batch)? {
                    break;
                }
            }
            let count = batch.used.iter().flatten().count() as u64;
            let is_full = if fill == Fill::Never { last - first } else { count } == full;
            self.deliver(&batch.used, is_full);
            first = last;
        }
        Ok(())
    }

    /// Whether a batch can be delivered. If not, its bad samples are judged.
    fn finish(&mut self, batch: &mut Slots) -> Result<bool, Over> {
        let slots = (batch.first..).zip(&batch.used);
        let samples: Vec<_> = slots.filter_map(|(slot, used)| Some((slot, (*used)?.0))).collect();
        let bad = self.world.find_unfit(&samples, |slot| batch.substituted.contains(&slot));
        if bad.is_empty() {
            for made in std::mem::take(&mut batch.tried) {
                if let (slot, Try::Replacement { fault, .. }) = made {
                    let (by, _) = batch.used[(slot - batch.first) as usize].expect("it is used");
                    self.seen.push(Seen::Replaced(fault, by));
                }
            }
            return Ok(true);
        }
        for BadSlot { slot, wish, .. } in bad {
            let used = batch.used[(slot - batch.first) as usize].take();
            let fault = (used.expect("it is used").0, false);
            let made = batch.tried.remove(&slot);
            if made.is_none() {
                let last = self.judged.iter().rposition(|is_bad| !is_bad).expect("it was good");
                self.judged.remove(last);
                self.judge_own_fault(batch, slot, fault, wish)?;
                continue;
            }
            if matches!(made, Some(Try::Repetition(_))) {
                self.account.repeated -= 1;
                self.in_vain += 1;
            }
            if wish == Wish::Raise {
                self.verdict(fault, wish)?;
            }
            self.try_again(batch, slot, made.expect("it was looked at"), true)?;
        }
        Ok(false)
    }

    /// A sample whose only turn it is.
    fn judge_own(&mut self, batch: &mut Slots, slot: u64, sequence: u64) -> Result<(), Over> {
        let at = (slot - batch.first) as usize;
        let Some((fault, wish)) = self.fault(sequence, batch.norm) else {
            self.judged.push(false);
            if let Nature::Good { shape, .. } = self.nature(sequence) {
                batch.norm.get_or_insert(shape);
                batch.used[at] = Some((sequence, false));
            } else {
                self.account.filtered += 1;
            }
            return Ok(());
        };
        self.judge_own_fault(batch, slot, fault, wish)
    }

    fn judge_own_fault(
        &mut self,
        batch: &mut Slots,
        slot: u64,
        fault: Shown,
        wish: Wish,
    ) -> Result<(), Over> {
        match self.verdict(fault, wish)? {
            Verdict::Substitute => {
                batch.substituted.insert(slot);
                batch.used[(slot - batch.first) as usize] = Some((fault.0, false));
            }
            Verdict::Replace => {
                batch.queue.push_back((slot, Try::Replacement { fault, tried: 0, bad: 0 }));
            }
            _ if self.world.settings.fill == Fill::Never => {}
            _ if self.end > batch.judged => {
                self.end -= 1;
                batch.queue.push_back((slot, Try::Fill(self.end)));
            }
            _ => self.repeat(batch, slot),
        }
        Ok(())
    }

    fn repeat(&mut self, batch: &mut Slots, slot: u64) {
        let Settings { samples, fill, .. } = self.world.settings;
        if fill == Fill::FromEndAndRepeat && self.useless.max(self.in_vain) < samples {
            batch.queue.push_back((slot, Try::Repetition(self.repetition % samples)));
            self.repetition += 1;
        }
    }

    fn judge_try(&mut self, batch: &mut Slots, (slot, made): (u64, Try)) -> Result<(), Over> {
        let epoch = self.world.settings.epoch;
        let sequence = match made {
            Try::Fill(sequence) => return self.judge_own(batch, slot, sequence),
            Try::Repetition(sequence) => sequence,
            Try::Replacement { tried, .. } => {
                let among = self.world.replacements(slot);
                Random::keyed(&[epoch, slot, u64::from(tried)]).below(among)
            }
        };
        let wrong = self.fault(sequence, batch.norm);
        if let Some((fault, Wish::Raise)) = wrong {
            self.verdict(fault, Wish::Raise)?;
        }
        if let (None, Nature::Good { shape, .. }) = (wrong, self.nature(sequence)) {
            batch.norm.get_or_insert(shape);
            let is_repetition = matches!(made, Try::Repetition(_));
            batch.used[(slot - batch.first) as usize] = Some((sequence, is_repetition));
            match made {
                Try::Replacement { .. } if self.world.settings.finishes => {}
                Try::Replacement { fault, .. } => self.seen.push(Seen::Replaced(fault, sequence)),
                Try::Repetition(_) | Try::Fill(_) => {
                    self.useless = 0;
                    self.account.repeated += 1;
                }
            }
            batch.tried.insert(slot, made);
            return Ok(());
        }
        self.try_again(batch, slot, made, wrong.is_some())
    }

    /// Another sample is tried in a slot.
    fn try_again(
        &mut self,
        batch: &mut Slots,
        slot: u64,
        made: Try,
        was_bad: bool,
    ) -> Result<(), Over> {
        if let Try::Replacement { fault, tried, bad } = made {
            let bad = bad + u32::from(was_bad);
            if bad == MAX_BAD_REPLACEMENTS || tried + 1 == MAX_REPLACEMENTS {
                self.seen.push(Seen::Stop("no replacement", fault));
                return Err(Over);
            }
            batch.queue.push_back((slot, Try::Replacement { fault, tried: tried + 1, bad }));
        } else {
            self.useless += 1;
            self.repeat(batch, slot);
        }
        Ok(())
    }

    fn gathered(&mut self, sizes: &[u64], has_buckets: bool) -> Result<(), Over> {
        let samples = self.world.settings.samples;
        let mut open: Vec<(Vec<Used>, Option<u32>)> = vec![(Vec::new(), None); sizes.len()];
        for slot in 0..samples {
            if !has_buckets && open[0].1.is_none() {
                open[0].1 = self.majority(slot..samples.min(slot + sizes[0]));
            }
            let mut bucket = match self.nature(slot) {
                Nature::Good { bucket, .. } if has_buckets => bucket as usize,
                _ => 0,
            };
            let mut sequence = slot;
            if let Some((fault, wish)) = self.fault(slot, open[bucket].1) {
                match self.verdict(fault, wish)? {
                    Verdict::Skip => continue,
                    Verdict::Replace => {
                        sequence = self.gathered_replacement(slot, fault, &open, has_buckets)?;
                        if let (true, Nature::Good { bucket: other, .. }) =
                            (has_buckets, self.nature(sequence))
                        {
                            bucket = other as usize;
                        }
                        self.replaced.insert((bucket, open[bucket].0.len() as u64));
                    }
                    _ => {
                        self.given.insert((bucket, open[bucket].0.len() as u64));
                    }
                }
            } else {
                self.judged.push(false);
                if matches!(self.nature(slot), Nature::Filtered) {
                    self.account.filtered += 1;
                    continue;
                }
            }
            self.add(&mut open, bucket, sizes, (sequence, false))?;
        }
        if self.world.settings.fill == Fill::FromEndAndRepeat {
            self.repeat_gathered(&mut open, sizes, has_buckets)?;
        }
        for (bucket, (used, _)) in open.into_iter().enumerate() {
            self.finish_gathered(bucket, &used, false)?;
        }
        Ok(())
    }

    /// As `replacement`, where the bucket of the sample decides which shape it must have.
    fn gathered_replacement(
        &mut self,
        slot: u64,
        fault: Shown,
        open: &[(Vec<Used>, Option<u32>)],
        has_buckets: bool,
    ) -> Result<u64, Over> {
        if !has_buckets {
            let mut norm = open[0].1;
            return self.replacement(slot, fault, &mut norm);
        }
        let Settings { epoch, samples, .. } = self.world.settings;
        let mut bad = 0;
        for tried in 0..u64::from(MAX_REPLACEMENTS) {
            let sequence = Random::keyed(&[epoch, slot, tried]).below(samples);
            let norm = match self.nature(sequence) {
                Nature::Good { bucket, .. } => open[bucket as usize].1,
                _ => None,
            };
            match (self.fault(sequence, norm), self.nature(sequence)) {
                (Some((other, Wish::Raise)), _) => {
                    self.verdict(other, Wish::Raise)?;
                }
                (Some(_), _) => bad += 1,
                (None, Nature::Good { .. }) => {
                    self.seen.push(Seen::Replaced(fault, sequence));
                    return Ok(sequence);
                }
                (None, _) => {}
            }
            if bad == MAX_BAD_REPLACEMENTS {
                break;
            }
        }
        self.seen.push(Seen::Stop("no replacement", fault));
        Err(Over)
    }

    fn add(
        &mut self,
        open: &mut [(Vec<Used>, Option<u32>)],
        bucket: usize,
        sizes: &[u64],
        used: (u64, bool),
    ) -> Result<(), Over> {
        if let Nature::Good { shape, .. } = self.nature(used.0) {
            open[bucket].1.get_or_insert(shape);
        }
        open[bucket].0.push(Some(used));
        if open[bucket].0.len() as u64 == sizes[bucket] {
            let (used, _) = std::mem::take(&mut open[bucket]);
            self.finish_gathered(bucket, &used, true)?;
        }
        Ok(())
    }

    fn repeat_gathered(
        &mut self,
        open: &mut [(Vec<Used>, Option<u32>)],
        sizes: &[u64],
        has_buckets: bool,
    ) -> Result<(), Over> {
        let samples = self.world.settings.samples;
        let mut useless = 0;
        loop {
            let missing = self.account.skipped.saturating_sub(self.repeated);
            let together = missing.min(samples - samples.min(self.in_vain.max(useless)));
            if together == 0 {
                return Ok(());
            }
            let first = self.repetition;
            self.repetition += together;
            for at in first..first + together {
                let sequence = at % samples;
                let bucket = match self.nature(sequence) {
                    Nature::Good { bucket, .. } if has_buckets => bucket as usize,
                    _ => 0,
                };
                let fault = self.fault(sequence, open[bucket].1);
                if let Some((fault, Wish::Raise)) = fault {
                    self.verdict(fault, Wish::Raise)?;
                }
                if fault.is_some() || matches!(self.nature(sequence), Nature::Filtered) {
                    useless += 1;
                    continue;
                }
                useless = 0;
                self.account.repeated += 1;
                self.repeated += 1;
                self.add(open, bucket, sizes, (sequence, true))?;
            }
        }
    }
}

// ---- the engine under a random schedule ----

struct Run<'a> {
    world: &'a World,
    start: Position,
    engine: Engine,
    /// Batches of the plan that were given, if they are.
    given: usize,
    /// Slots below this one were ordered.
    ordered: u64,
    /// Orders that have no result yet, with the attempts so far.
    making: Vec<(Order, u32)>,
    /// What each slot has a result of: the sequence that was made for it last.
    made: BTreeMap<u64, u64>,
    /// Batches that are to be finished: one at a time, or gathered ones.
    unfinished: Vec<Unfinished>,
    /// Slots with what the user gave for a bad sample.
    substituted: BTreeSet<u64>,
    delivered: Vec<Batch>,
    taken: usize,
    seen: Vec<Seen>,
}

impl Run<'_> {
    fn new(world: &World, position: Position) -> Run<'_> {
        let mut run = Run {
            world,
            engine: Engine::new(world.first_settings(), position.clone()),
            ordered: position.slot,
            start: position,
            given: 0,
            making: Vec::new(),
            made: BTreeMap::new(),
            unfinished: Vec::new(),
            substituted: BTreeSet::new(),
            delivered: Vec::new(),
            taken: 0,
            seen: Vec::new(),
        };
        let mut actions = Vec::new();
        run.engine.advance(&mut actions);
        run.perform(actions);
        run
    }

    /// One step, chosen by chance.
    fn step(&mut self, random: &mut Random, ahead: usize) {
        self.give_batches(random);
        let can_order = self.making.len() < ahead && self.engine.orders_left() > 0;
        if can_order && (self.making.is_empty() || random.below(2) == 0) {
            let left = self.engine.orders_left();
            let order = self.engine.next_order().expect("it said that there are orders");
            assert_eq!(self.engine.orders_left(), left - 1);
            self.ordered = order.slot + 1;
            self.order(order, 0);
            self.order_rest_of_batch();
        } else if !self.unfinished.is_empty() && (self.making.is_empty() || random.below(3) == 0) {
            let at = random.below(self.unfinished.len() as u64) as usize;
            let batch = self.unfinished.swap_remove(at);
            self.finish(batch);
        } else if !self.making.is_empty() {
            let (order, attempt) =
                self.making.swap_remove(random.below(self.making.len() as u64) as usize);
            let current = self.engine.current(order);
            assert_eq!(current.sequence, order.sequence);
            assert_eq!(
                self.made.insert(current.slot, order.sequence).filter(|_| attempt == 0),
                None
            );
            let mut actions = Vec::new();
            let outcome = self.world.outcome(order, current.slot, attempt);
            if let Outcome::Bad { wish: Wish::Substitute, .. } = outcome {
                self.substituted.insert(current.slot);
            }
            self.engine.result(order, outcome, &mut actions);
            // Several results may come before anything is decided.
            if self.making.is_empty() || random.below(3) > 0 {
                self.engine.advance(&mut actions);
            }
            self.perform_results(actions, order, attempt);
        } else {
            let mut actions = Vec::new();
            self.engine.advance(&mut actions);
            assert!(!actions.is_empty(), "nothing is being made, and the epoch is not over");
            self.perform(actions);
        }
        if self.taken < self.delivered.len() && random.below(3) == 0 {
            self.engine.taken();
            self.taken += 1;
        }
        assert!(self.engine.needed_below() >= self.engine.settled_below());
        let settled = self.engine.settled_below();
        if let Some(next) = self.delivered.get(self.taken) {
            let end = next.position.slot + next.position.tried;
            assert!(settled <= end, "what was not taken is not settled");
        } else if let Some(last) = self.delivered.last() {
            assert!(settled >= last.position.slot, "what was taken is settled");
        }
    }

    /// Gives some batches of the plan; some if nothing else can be done.
    fn give_batches(&mut self, random: &mut Random) {
        if self.world.settings.plan == Plan::Known {
            return;
        }
        let is_idle = self.making.is_empty() && self.engine.orders_left() == 0;
        let count = random.below(3) + u64::from(is_idle && self.unfinished.is_empty());
        for _ in 0..count {
            self.give_batch();
        }
    }

    fn give_batch(&mut self) {
        match self.world.sizes.get(self.given) {
            Some(size) => self.engine.plan(*size),
            None => self.engine.plan_ends(),
        }
        self.given += 1;
    }

    /// What is made as a whole is ordered as a whole.
    fn order_rest_of_batch(&mut self) {
        let Moves::Remade { .. } = self.world.settings.moves else { return };
        let end = self.world.batch_of(self.ordered.saturating_sub(1)).end;
        while self.ordered < end {
            let Some(order) = self.engine.next_order() else { return };
            self.ordered = order.slot + 1;
            self.order(order, 0);
        }
    }

    /// A sample that fills a slot and was not ordered before is in a batch that is not ordered ahead.
    fn check_ahead(&self, order: Order) {
        let Moves::Remade { ahead } = self.world.settings.moves else { return };
        let mut end = order.slot;
        for _ in 0..ahead {
            end = self.world.batch_of(end).end;
        }
        assert!(order.sequence >= end, "{order:?} should have been ordered");
    }

    /// The batch of a slot is made again, without the samples from this slot on.
    fn remake(&mut self, from: u64) {
        let batch = self.world.batch_of(from);
        self.making.retain(|(order, _)| !batch.contains(&order.slot));
        for slot in batch.clone() {
            self.made.remove(&slot);
            self.substituted.remove(&slot);
        }
        for slot in batch.start..from {
            self.order(Order { slot, sequence: slot, purpose: Purpose::Planned }, 0);
        }
    }

    fn finish(&mut self, batch: Unfinished) {
        let Unfinished { number, samples } = batch;
        for (slot, sequence) in &samples {
            assert_eq!(self.made.get(slot), Some(sequence), "another sample is in slot {slot}");
        }
        let bad = self.world.find_unfit(&samples, |slot| self.substituted.contains(&slot));
        let given = bad.iter().filter(|bad| bad.wish == Wish::Substitute);
        self.substituted.extend(given.map(|bad| bad.slot));
        let finished = if bad.is_empty() { Finished::Good } else { Finished::Bad(bad) };
        self.engine.finished(number, finished);
        let mut actions = Vec::new();
        self.engine.advance(&mut actions);
        self.perform(actions);
    }

    fn order(&mut self, order: Order, attempt: u32) {
        assert!(order.sequence < self.world.settings.samples, "{order:?}");
        let slots: Vec<_> =
            self.making.iter().map(|(other, _)| self.engine.current(*other).slot).collect();
        assert!(!slots.contains(&order.slot), "{order:?} has an order already");
        if attempt == 0 {
            self.made.remove(&order.slot);
            self.substituted.remove(&order.slot);
        }
        self.making.push((order, attempt));
    }

    fn is_fixed(&self) -> bool {
        self.world.settings.membership == Membership::Fixed
    }

    fn perform(&mut self, actions: Vec<Action>) {
        self.perform_results(actions, Order { slot: 0, sequence: 0, purpose: Purpose::Planned }, 0);
    }

    fn perform_results(&mut self, actions: Vec<Action>, result: Order, attempt: u32) {
        let mut is_planned = false;
        for action in actions {
            match action {
                Action::Make(order, after) => {
                    let is_retry = after > Duration::ZERO;
                    if order.purpose == Purpose::Fill && order.sequence >= self.ordered {
                        self.check_ahead(order);
                    }
                    assert!(
                        !is_retry || order.sequence == result.sequence,
                        "only what has failed is retried"
                    );
                    self.order(order, if is_retry { attempt + 1 } else { 0 });
                }
                Action::Move { from, to } => {
                    assert!(from > to, "a sample of an earlier slot fills a later one");
                    let is_remade = matches!(self.world.settings.moves, Moves::Remade { .. });
                    if is_remade && !self.world.batch_of(to).contains(&from) {
                        self.remake(from);
                        continue;
                    }
                    self.made.remove(&to);
                    self.substituted.remove(&to);
                    if self.substituted.remove(&from) {
                        self.substituted.insert(to);
                    }
                    if let Some(sequence) = self.made.remove(&from) {
                        self.made.insert(to, sequence);
                    }
                }
                Action::ReadPlan => {
                    assert_eq!(self.world.settings.plan, Plan::Given);
                    while self.given <= self.world.sizes.len() {
                        self.give_batch();
                    }
                    is_planned = true;
                }
                Action::Order { below } => {
                    for slot in self.ordered..below {
                        self.order(Order { slot, sequence: slot, purpose: Purpose::Planned }, 0);
                    }
                    self.ordered = below;
                }
                Action::RecordRetry { fault } => {
                    assert_eq!(shown(Fault::Reported(fault)), (result.sequence, false))
                }
                Action::Record { fault, verdict } => {
                    let fault = shown(fault);
                    if !matches!(verdict, Verdict::TooMany(_)) {
                        self.seen.push(Seen::Verdict(fault, verdict));
                    }
                }
                Action::RecordReplacement { fault, by } => {
                    self.seen.push(Seen::Replaced(shown(fault), by));
                }
                Action::Finish(unfinished) => {
                    let is_alone = self.unfinished.is_empty() || !self.is_fixed();
                    assert!(self.world.settings.finishes && is_alone);
                    self.unfinished.push(unfinished);
                }
                Action::Deliver(batch) => {
                    let is_finished = self.unfinished.is_empty() || !self.is_fixed();
                    assert!(is_finished, "it is being finished");
                    for (slot, sequence) in &batch.samples {
                        assert_eq!(
                            self.made.get(slot),
                            Some(sequence),
                            "another sample is in slot {slot}"
                        );
                    }
                    let samples = batch.samples.iter().map(|(_, sequence)| *sequence).collect();
                    self.seen.push(Seen::Batch(samples, batch.repeated));
                    assert_eq!(batch.number, self.delivered.len() as u64);
                    self.delivered.push(batch);
                }
                Action::Drop { .. } => {}
                Action::Stop(stop) => {
                    let (name, fault) = match stop {
                        Stop::Raised(fault) => ("raised", fault),
                        Stop::TooMany(fault, _) => ("too many", fault),
                        Stop::NoReplacement { fault, .. } => ("no replacement", fault),
                        Stop::Unexpected(order) => panic!("{order:?} was not expected"),
                        Stop::DoesNotAddUp(account) => panic!("it does not add up: {account:?}"),
                    };
                    self.seen.push(Seen::Stop(name, shown(fault)));
                }
                Action::End(account) => {
                    assert!(account.adds_up());
                    self.seen.push(Seen::End(account));
                }
            }
        }
        if is_planned {
            let mut actions = Vec::new();
            self.engine.advance(&mut actions);
            self.perform_results(actions, result, attempt);
        }
    }
}

fn shown(fault: Fault) -> Shown {
    match fault {
        Fault::Reported(fault) => (fault & u64::from(u32::MAX), false),
        Fault::Misfit { sequence, .. } => (sequence, true),
    }
}

fn check(seed: u64) {
    let mut random = Random::keyed(&[seed]);
    let world = World::new(&mut random);
    let ahead = 1 + random.below(40) as usize;
    let expected = Model::run(&world);
    let mut run = Run::new(&world, Position::default());
    // An epoch whose batches are given is not continued.
    let mut stops = if world.settings.plan == Plan::Known { random.below(4) } else { 0 };
    let mut earlier: Vec<(Vec<u64>, u64)> = Vec::new();
    let mut was_stopped = false;
    while !run.engine.is_over() {
        run.step(&mut random, ahead);
        if stops > 0 && random.below(20) == 0 {
            // The consumer has what it took, and everything else is made once more.
            stops -= 1;
            was_stopped = true;
            let taken = &run.delivered[..run.taken];
            earlier.extend(taken.iter().map(|batch| {
                (batch.samples.iter().map(|(_, sequence)| *sequence).collect(), batch.repeated)
            }));
            let position = taken.last().map_or(&run.start, |batch| &batch.position);
            run = Run::new(&world, position.clone());
        }
    }
    let last = run.delivered.len().saturating_sub(1);
    for batch in &run.delivered[..last] {
        assert!(
            world.settings.plan != Plan::Known || !batch.position.is_at_end(&world.settings),
            "a batch came after the end"
        );
    }
    if was_stopped {
        earlier.extend(batches(&run.seen));
        let plain = |batches: Vec<(Vec<u64>, u64)>| -> Vec<Vec<u64>> {
            batches.into_iter().map(|(samples, _)| samples).collect()
        };
        assert_eq!(plain(earlier), plain(batches(&expected)));
    } else {
        assert_eq!(run.seen, expected);
    }
}

#[test]
fn the_engine_keeps_its_promises_in_every_epoch() {
    let only = std::env::var("FEEDLINE_SEED").ok().and_then(|seed| seed.parse().ok());
    let seeds = only.map_or(0..EPOCHS, |seed| seed..seed + 1);
    for seed in seeds {
        let outcome = std::panic::catch_unwind(|| check(seed));
        assert!(outcome.is_ok(), "FEEDLINE_SEED={seed}");
    }
}

#[test]
fn a_second_result_is_noticed() {
    let settings = Settings {
        samples: 3,
        batch_size: 2,
        drop_last: false,
        membership: Membership::Fixed,
        fill: Fill::FromEnd,
        misfit: None,
        finishes: false,
        plan: Plan::Known,
        moves: Moves::Sample,
        limit: None,
        window: 10,
        epoch: 0,
    };
    for membership in [Membership::Fixed, Membership::Gathered] {
        let mut engine =
            Engine::new(Settings { membership, ..settings.clone() }, Position::default());
        let order = engine.next_order().expect("there are samples");
        let good = Outcome::Good { bucket: 0, shape: 0 };
        let mut actions = Vec::new();
        engine.result(order, good, &mut actions);
        assert_eq!(actions, []);
        engine.result(order, good, &mut actions);
        assert_eq!(actions, [Action::Stop(Stop::Unexpected(order))]);
    }
}
