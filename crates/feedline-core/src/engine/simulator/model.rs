//! The plain model of an epoch: it makes one sample after another and knows all of them beforehand.
#![expect(clippy::wildcard_enum_match_arm, reason = "the model is short, to be read at a glance")]

use super::*;

/// Makes one sample after another, as someone would who has all the time in the world.
pub(super) struct Model<'a> {
    world: &'a World,
    /// Whether each sample that was judged was bad.
    judged: Vec<bool>,
    /// Samples before this one were not used to fill slots.
    end: u64,
    repetition: u64,
    failed_repetitions: u64,
    /// Repetitions since the last batch that were bad when theirs was finished.
    failed_repetitions_at_finish: u64,
    /// Repetitions that were gathered.
    repeated: u64,
    /// What the user gave for bad samples, and those that replace others: buckets and places there.
    given: BTreeSet<(usize, u64)>,
    replaced: BTreeSet<(usize, u64)>,
    account: Account,
    seen: Vec<Observed>,
}

/// A batch with fixed slots.
struct Slots {
    first: u64,
    /// Slots before this one were judged.
    judged: u64,
    norm: Option<u32>,
    used: Vec<Used>,
    /// What is tried next, and in which slot.
    queue: VecDeque<(u64, Attempt)>,
    /// Slots with what the user gave, and those with another sample, until their batch is finished.
    substituted: BTreeSet<u64>,
    tried: BTreeMap<u64, Attempt>,
}

#[derive(Clone, Copy)]
enum Attempt {
    Fill(u64),
    Repetition(u64),
    Replacement { fault: Shown, tried: u32, bad: u32 },
}

/// The run is over.
struct Over;

/// What is in a slot after all: a sequence, and whether it is a repetition.
type Used = Option<(u64, bool)>;

impl Model<'_> {
    pub(super) fn run(world: &World) -> Vec<Observed> {
        let due = world.settings.samples;
        let account = Account { due, ..Account::default() };
        let (judged, seen) = (Vec::new(), Vec::new());
        let mut model = Model {
            world,
            judged,
            end: due,
            repetition: 0,
            failed_repetitions: 0,
            failed_repetitions_at_finish: 0,
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
            Membership::Unordered => unreachable!("it has a model of its own"),
        };
        if over.is_ok() {
            model.seen.push(Observed::End(model.account));
        }
        model.seen
    }

    fn nature(&self, sequence: u64) -> Nature {
        self.world.natures[sequence as usize]
    }

    /// Whether there are too many faults now, counted anew from all that was judged.
    fn is_too_many(&self) -> bool {
        let EpochSettings { limit, window, samples, plan, .. } = self.world.settings;
        let faults = |judged: &[bool]| judged.iter().filter(|is_bad| **is_bad).count() as f64;
        match limit {
            None => false,
            Some(Limit::Count(count)) => faults(&self.judged) > count as f64,
            Some(Limit::Share(share)) if samples < window && plan != BatchPlan::Open => {
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
    fn fault(&self, sequence: u64, norm: Option<u32>) -> Option<(Shown, PolicyAction)> {
        match (self.nature(sequence), self.world.settings.misfit, norm) {
            (Nature::Bad(policy_action), ..) => Some(((sequence, false), policy_action)),
            (Nature::Good { shape, .. }, Some(policy_action), Some(norm)) if shape != norm => {
                Some(((sequence, true), policy_action))
            }
            _ => None,
        }
    }

    fn verdict(&mut self, fault: Shown, policy_action: PolicyAction) -> Result<Verdict, Over> {
        self.judged.push(true);
        if policy_action == PolicyAction::Raise {
            self.seen.push(Observed::Verdict(fault, Verdict::Raise));
            self.seen.push(Observed::Stop("raised", fault));
            return Err(Over);
        }
        if self.is_too_many() {
            self.seen.push(Observed::Stop("too many", fault));
            return Err(Over);
        }
        let verdict = match policy_action {
            PolicyAction::Skip => Verdict::Skip,
            PolicyAction::Replace => Verdict::Replace,
            _ => Verdict::Substitute,
        };
        match verdict {
            Verdict::Skip => self.account.skipped += 1,
            _ => self.account.replaced += 1,
        }
        self.seen.push(Observed::Verdict(fault, verdict));
        Ok(verdict)
    }

    /// Finds the sample that replaces a bad one.
    fn replacement(
        &mut self,
        slot: u64,
        fault: Shown,
        norm: &mut Option<u32>,
    ) -> Result<u64, Over> {
        let EpochSettings { epoch, samples, .. } = self.world.settings;
        let mut bad = 0;
        for tried in 0..u64::from(MAX_REPLACEMENTS) {
            let sequence = Random::keyed(&[epoch, slot, tried]).below(samples);
            match (self.fault(sequence, *norm), self.nature(sequence)) {
                (Some((other, PolicyAction::Raise)), _) => {
                    self.verdict(other, PolicyAction::Raise)?;
                }
                (Some(_), _) => bad += 1,
                (None, Nature::Good { shape, .. }) => {
                    norm.get_or_insert(shape);
                    self.seen.push(Observed::Replaced(fault, sequence));
                    return Ok(sequence);
                }
                (None, _) => {}
            }
            if bad == MAX_BAD_REPLACEMENTS {
                break;
            }
        }
        self.seen.push(Observed::Stop("no replacement", fault));
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
            self.failed_repetitions_at_finish = 0;
            self.account.delivered += count;
            self.seen.push(Observed::Batch(samples, repeated));
        }
    }

    /// Finishes a batch that was gathered: what is bad after all is left out of it.
    fn finish_gathered(&mut self, bucket: usize, used: &[Used], is_full: bool) -> Result<(), Over> {
        let EpochSettings { finishes, drop_last, .. } = self.world.settings;
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
            for BadSlot { slot: at, policy_action, .. } in bad {
                let (sequence, is_repetition) = used[at as usize].expect("it was looked at");
                if is_repetition && policy_action == PolicyAction::Skip {
                    self.account.repeated -= 1;
                    self.repeated -= 1;
                    self.failed_repetitions_at_finish += 1;
                    used[at as usize] = None;
                    continue;
                }
                if !is_repetition && !replaced.contains(&(bucket, at)) {
                    let last = self.judged.iter().rposition(|is_bad| !is_bad).expect("it was good");
                    self.judged.remove(last);
                }
                match self.verdict((sequence, false), policy_action)? {
                    Verdict::Substitute => {
                        substituted.insert((bucket, at));
                    }
                    Verdict::Replace => {
                        self.seen.push(Observed::Stop("no replacement", (sequence, false)));
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
        let EpochSettings { samples, batch_size, fill, plan, .. } = self.world.settings;
        let repeats = fill == Fill::FromEndAndRepeat;
        let mut first = 0;
        while first < if repeats { samples } else { self.end } {
            let last = self.world.batch_of(first).end;
            let is_short = self.world.ends_short && last == samples;
            let full = match plan {
                BatchPlan::Known => batch_size,
                BatchPlan::Given | BatchPlan::Open => last - first + u64::from(is_short),
            };
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
                    self.report_replacements(&mut batch);
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
            return Ok(true);
        }
        for BadSlot { slot, policy_action, .. } in bad {
            let used = batch.used[(slot - batch.first) as usize].take();
            let fault = (used.expect("it is used").0, false);
            let made = batch.tried.remove(&slot);
            if made.is_none() {
                let last = self.judged.iter().rposition(|is_bad| !is_bad).expect("it was good");
                self.judged.remove(last);
                self.judge_own_fault(batch, slot, fault, policy_action)?;
                continue;
            }
            if matches!(made, Some(Attempt::Repetition(_))) {
                self.account.repeated -= 1;
                self.failed_repetitions_at_finish += 1;
            }
            if policy_action == PolicyAction::Raise {
                self.verdict(fault, policy_action)?;
            }
            self.try_again(batch, slot, made.expect("it was looked at"), true)?;
        }
        Ok(false)
    }

    fn report_replacements(&mut self, batch: &mut Slots) {
        for made in std::mem::take(&mut batch.tried) {
            if let (slot, Attempt::Replacement { fault, .. }) = made {
                let (by, _) = batch.used[(slot - batch.first) as usize].expect("it is used");
                self.seen.push(Observed::Replaced(fault, by));
            }
        }
    }

    /// A sample whose only turn it is.
    fn judge_own(&mut self, batch: &mut Slots, slot: u64, sequence: u64) -> Result<(), Over> {
        let at = (slot - batch.first) as usize;
        let Some((fault, policy_action)) = self.fault(sequence, batch.norm) else {
            self.judged.push(false);
            if let Nature::Good { shape, .. } = self.nature(sequence) {
                batch.norm.get_or_insert(shape);
                batch.used[at] = Some((sequence, false));
            } else {
                self.account.filtered += 1;
            }
            return Ok(());
        };
        self.judge_own_fault(batch, slot, fault, policy_action)
    }

    fn judge_own_fault(
        &mut self,
        batch: &mut Slots,
        slot: u64,
        fault: Shown,
        policy_action: PolicyAction,
    ) -> Result<(), Over> {
        match self.verdict(fault, policy_action)? {
            Verdict::Substitute => {
                batch.substituted.insert(slot);
                batch.used[(slot - batch.first) as usize] = Some((fault.0, false));
            }
            Verdict::Replace => {
                batch.queue.push_back((slot, Attempt::Replacement { fault, tried: 0, bad: 0 }));
            }
            _ if self.world.settings.fill == Fill::Never => {}
            _ if self.end > batch.judged => {
                self.end -= 1;
                batch.queue.push_back((slot, Attempt::Fill(self.end)));
            }
            _ => self.repeat(batch, slot),
        }
        Ok(())
    }

    fn repeat(&mut self, batch: &mut Slots, slot: u64) {
        let EpochSettings { samples, fill, .. } = self.world.settings;
        if fill == Fill::FromEndAndRepeat
            && self.failed_repetitions.max(self.failed_repetitions_at_finish) < samples
        {
            batch.queue.push_back((slot, Attempt::Repetition(self.repetition % samples)));
            self.repetition += 1;
        }
    }

    fn judge_try(&mut self, batch: &mut Slots, (slot, made): (u64, Attempt)) -> Result<(), Over> {
        let epoch = self.world.settings.epoch;
        let sequence = match made {
            Attempt::Fill(sequence) => return self.judge_own(batch, slot, sequence),
            Attempt::Repetition(sequence) => sequence,
            Attempt::Replacement { tried, .. } => {
                let among = self.world.replacements(slot);
                Random::keyed(&[epoch, slot, u64::from(tried)]).below(among)
            }
        };
        let wrong = self.fault(sequence, batch.norm);
        if let Some((fault, PolicyAction::Raise)) = wrong {
            self.verdict(fault, PolicyAction::Raise)?;
        }
        if let (None, Nature::Good { shape, .. }) = (wrong, self.nature(sequence)) {
            batch.norm.get_or_insert(shape);
            let is_repetition = matches!(made, Attempt::Repetition(_));
            batch.used[(slot - batch.first) as usize] = Some((sequence, is_repetition));
            match made {
                Attempt::Replacement { .. } => {}
                Attempt::Repetition(_) | Attempt::Fill(_) => {
                    self.failed_repetitions = 0;
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
        made: Attempt,
        was_bad: bool,
    ) -> Result<(), Over> {
        if let Attempt::Replacement { fault, tried, bad } = made {
            let bad = bad + u32::from(was_bad);
            if bad == MAX_BAD_REPLACEMENTS || tried + 1 == MAX_REPLACEMENTS {
                self.seen.push(Observed::Stop("no replacement", fault));
                return Err(Over);
            }
            batch.queue.push_back((slot, Attempt::Replacement { fault, tried: tried + 1, bad }));
        } else {
            self.failed_repetitions += 1;
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
            if let Some((fault, policy_action)) = self.fault(slot, open[bucket].1) {
                match self.verdict(fault, policy_action)? {
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
        let EpochSettings { epoch, samples, .. } = self.world.settings;
        let mut bad = 0;
        for tried in 0..u64::from(MAX_REPLACEMENTS) {
            let sequence = Random::keyed(&[epoch, slot, tried]).below(samples);
            let norm = match self.nature(sequence) {
                Nature::Good { bucket, .. } => open[bucket as usize].1,
                _ => None,
            };
            match (self.fault(sequence, norm), self.nature(sequence)) {
                (Some((other, PolicyAction::Raise)), _) => {
                    self.verdict(other, PolicyAction::Raise)?;
                }
                (Some(_), _) => bad += 1,
                (None, Nature::Good { .. }) => {
                    self.seen.push(Observed::Replaced(fault, sequence));
                    return Ok(sequence);
                }
                (None, _) => {}
            }
            if bad == MAX_BAD_REPLACEMENTS {
                break;
            }
        }
        self.seen.push(Observed::Stop("no replacement", fault));
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
        let mut failed_repetitions = 0;
        loop {
            let missing = self.account.skipped.saturating_sub(self.repeated);
            let together = missing.min(
                samples - samples.min(self.failed_repetitions_at_finish.max(failed_repetitions)),
            );
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
                if let Some((fault, PolicyAction::Raise)) = fault {
                    self.verdict(fault, PolicyAction::Raise)?;
                }
                if fault.is_some() || matches!(self.nature(sequence), Nature::Filtered) {
                    failed_repetitions += 1;
                    continue;
                }
                failed_repetitions = 0;
                self.account.repeated += 1;
                self.repeated += 1;
                self.add(open, bucket, sizes, (sequence, true))?;
            }
        }
    }
}
