//! Whether what the supervisor does may be done.

use std::time::Duration;

use super::watch::Watched;
use super::{Due, Outcome, Promises, Verdict, Worker, Zygote, keep};
use crate::worker::supervisor::{Action, Death, Life, Task};

impl Promises {
    pub(super) fn check_action(
        &mut self,
        action: &Action,
        due: &mut Due,
        now: Duration,
    ) -> Verdict {
        let running = self.is_running();
        let allowed_later = match action {
            Action::BearZygote { .. }
            | Action::EndZygote
            | Action::PingZygote { .. }
            | Action::ZygoteSlow
            | Action::ZygoteHung
            | Action::Fork { .. }
            | Action::Send { .. }
            | Action::Accept { .. }
            | Action::GiveUp { .. }
            | Action::Dump { .. }
            | Action::Stalled { .. }
            | Action::Reborn { .. }
            | Action::Retired { .. }
            | Action::Fail(_) => false,
            Action::Stop { .. }
            | Action::Kill { .. }
            | Action::Discard { .. }
            | Action::Died(_)
            | Action::Closed => true,
        };
        keep(running || allowed_later, || format!("{action:?} after the run had ended"))?;
        due.ping |=
            matches!(action, Action::Fork { .. } | Action::Kill { .. } | Action::Dump { .. });
        match action {
            Action::BearZygote { fresh } => {
                keep(due.bear, || "a zygote was started that nobody misses".into())?;
                keep(*fresh == self.reborn, || "a zygote of the wrong kind was started".into())?;
                due.bear = false;
                self.zygote = Zygote::Booting;
            }
            Action::EndZygote => {
                keep(due.end_zygote, || "the zygote was ended without a reason".into())?;
                due.end_zygote = false;
                self.zygote = Zygote::Ending { since: now };
            }
            Action::PingZygote { number } => self.check_ping(*number, due, now)?,
            Action::ZygoteSlow => {
                keep(due.zygote_slow, || "the zygote is not slow".into())?;
                due.zygote_slow = false;
            }
            Action::ZygoteHung => {
                keep(due.zygote_hung, || "the zygote does not hang".into())?;
                due.zygote_hung = false;
            }
            Action::Dump { life } => {
                let watched = due.watched.take();
                keep(watched == Some(Watched::Dump(*life)), || format!("{action:?}"))?;
            }
            Action::Stalled { life, seen } => {
                let watched = due.watched.take();
                keep(watched == Some(Watched::Stalled(*life, *seen)), || format!("{action:?}"))?;
            }
            Action::Reborn { life, seen } => {
                let watched = due.watched.take();
                keep(watched == Some(Watched::Reborn(*life, *seen)), || format!("{action:?}"))?;
                keep(!self.reborn, || "a second rebirth".into())?;
                self.reborn = true;
                due.end_zygote = true;
            }
            Action::Retired { life } => {
                let place = due.retired.iter().position(|other| other == life);
                let place = place.ok_or_else(|| format!("{life:?} has not retired"))?;
                due.retired.remove(place);
            }
            Action::Fork { life } => self.check_fork(*life, due, now)?,
            Action::Send { life, task, trial } => {
                self.check_send(*life, *task, *trial, due, now)?
            }
            Action::Stop { life } => self.check_stop(*life, due, now)?,
            Action::Kill { life } => self.check_kill(*life, due, now)?,
            Action::Accept { task } => {
                keep(due.accept.take() == Some(*task), || format!("nobody answered {task}"))?;
                let entry = &mut self.entries[*task as usize];
                keep(entry.outcome.is_none(), || format!("{task} got a second result"))?;
                entry.outcome = Some(Outcome::Answer);
            }
            Action::Discard { task, life } => {
                keep(due.discard.take() == Some((*task, *life)), || {
                    format!("a good answer to {task} was thrown away")
                })?;
            }
            Action::GiveUp { task, at, why } => {
                let told = (*task, *at, *why);
                let place = due.give_up.iter().position(|other| *other == told);
                let place = place.ok_or_else(|| format!("{action:?} has no reason"))?;
                due.give_up.remove(place);
            }
            Action::Died(death) => {
                let Death { life, stage, ending, tasks, overdue, .. } = death.clone();
                let told = (life, stage, ending, tasks, overdue);
                let place = due.died.iter().position(|other| *other == told);
                let place = place.ok_or_else(|| format!("the log tells of {death:?}"))?;
                due.died.remove(place);
                let post = death.life.post;
                // Only the death of a successor leaves a holder behind who was there before.
                let holder = self.benches[post as usize].holder();
                let without = holder.is_some_and(|holder| holder.life.generation < life.generation);
                let needed = self.is_needed(post) && !without;
                let goes_on = running && due.failure.is_none() && needed;
                keep(death.replaced == goes_on && death.at == now, || format!("wrong: {death:?}"))?;
            }
            Action::Fail(failure) => {
                keep(due.failure.take() == Some(*failure), || format!("unfounded {failure:?}"))?;
                self.ending_since = Some(now);
            }
            Action::Closed => {
                keep(self.must_be_closed(now), || "Closed came too early".into())?;
                let since = self.close_at.unwrap_or(now);
                keep(now <= since + self.settings.grace * 3, || "Closed came too late".into())?;
                let running = self.benches.iter().flat_map(|bench| &bench.workers);
                for worker in running {
                    keep(worker.killed, || format!("{:?} was left alive", worker.life))?;
                }
                self.closed = true;
            }
        }
        Ok(())
    }

    fn check_fork(&mut self, life: Life, due: &mut Due, now: Duration) -> Verdict {
        keep(self.zygote == Zygote::Ready, || format!("{life:?} has no zygote"))?;
        let renewal = due.renewal.take();
        let renews = renewal == Some(life);
        keep(renews || renewal.is_none(), || format!("{renewal:?} was to be forked"))?;
        keep(renews || self.is_needed(life.post), || format!("{life:?} is not needed"))?;
        if let Some(at) = self.next_try(life.post) {
            keep(now >= at, || format!("{life:?} was retried at {now:?}, before {at:?}"))?;
        }
        let bench = self.bench(life.post);
        let vacant = bench.holder().is_none();
        keep(vacant || renews, || format!("{life:?} is a second one on its post"))?;
        keep(bench.workers.len() < 2, || format!("{life:?} is a third one on its post"))?;
        keep(life.generation == bench.forks, || format!("{life:?} is out of order"))?;
        bench.forks += 1;
        bench.workers.push(Worker::new(life));
        Ok(())
    }

    fn check_send(
        &mut self,
        life: Life,
        task: Task,
        trial: Option<u64>,
        due: &mut Due,
        now: Duration,
    ) -> Verdict {
        keep(self.zygote == Zygote::Ready, || format!("{life:?} goes with its zygote"))?;
        if due.again == Some((life, task)) {
            due.again = None;
            return keep(trial.is_none(), || format!("{task} is retried"));
        }
        let entry = self.entries.get(task as usize).ok_or("a task nobody submitted was sent")?;
        let pin = entry.pin;
        keep(entry.outcome.is_none(), || format!("{task} was sent after its result"))?;
        keep(!entry.held, || format!("{task} was sent twice"))?;
        keep(pin.is_none_or(|post| post == life.post), || format!("{task} went to {life:?}"))?;
        let wanted = entry.trial.map(|(_, position)| position);
        keep(wanted == trial, || format!("{task} was sent with {trial:?} for {wanted:?}"))?;
        if let Some((post, _)) = entry.trial {
            keep(post == life.post, || format!("{task} is tried on another post"))?;
        } else {
            let tries = self.trials(life.post).next();
            keep(tries.is_none(), || format!("{task} was sent before the trial of {tries:?}"))?;
        }
        let older = (self.settled as Task..task).find(|older| {
            let entry = &self.entries[*older as usize];
            let is_other = pin.is_none() && (entry.trial.is_some() || trial.is_some());
            entry.pin == pin && self.waits_for(*older) && !is_other
        });
        keep(older.is_none(), || format!("{task} was sent before {older:?}"))?;
        let depth = self.settings.depth as usize;
        let least = self.able().map(|worker| worker.at_hand.len()).min().unwrap_or(0);
        let bench = &self.benches[life.post as usize];
        keep(bench.is_holder(life), || format!("{life:?} does not hold its post"))?;
        let in_order = (pin.is_none() && trial.is_none()) || bench.is_handed_over();
        keep(in_order, || format!("{task} came to {life:?} too early"))?;
        let worker = self.known(life, "Send")?;
        keep(worker.is_at_work(), || format!("{task} was sent to {life:?}, not at work"))?;
        keep(worker.trial.is_none(), || format!("{task} disturbs the trial of {life:?}"))?;
        if pin.is_some() {
            let in_order = worker.newest_pinned.is_none_or(|newest| newest < task);
            keep(in_order, || format!("{task} reached {life:?} after a newer one"))?;
            worker.newest_pinned = Some(task);
        } else if trial.is_none() {
            let held = worker.at_hand.len();
            keep(held < depth && held == least, || format!("{life:?} has enough: {held}"))?;
        }
        if trial.is_some() {
            let alone = worker.fresh && worker.at_hand.is_empty();
            keep(alone, || format!("{life:?} tries {task} and is not fresh"))?;
        }
        worker.fresh = false;
        worker.trial = trial;
        if worker.at_hand.is_empty() {
            worker.busy_since = now;
        }
        worker.at_hand.push(task);
        let entry = &mut self.entries[task as usize];
        entry.trial = None;
        entry.held = true;
        entry.sent += 1;
        self.resent += u64::from(entry.sent > 1);
        Ok(())
    }

    fn check_stop(&mut self, life: Life, due: &mut Due, now: Duration) -> Verdict {
        let running = self.is_running();
        if due.stop == Some(life) {
            due.stop = None;
        } else if running {
            let retired = self.bench(life.post).retired && !self.waits(Some(life.post));
            let tries = self.trials(life.post).next().is_some();
            let worker = self.known(life, "Stop")?;
            // It has worked, and another one must come for the trial.
            let stale = tries && !worker.fresh;
            let busy = worker.trial.is_some() || (tries && worker.fresh);
            keep((retired || stale) && !busy, || format!("{life:?} is still needed"))?;
        }
        let worker = self.known(life, "Stop")?;
        keep(worker.is_at_work(), || format!("Stop for {life:?}, which is not at work"))?;
        worker.stopped = true;
        worker.idle_since = worker.at_hand.is_empty().then_some(now);
        Ok(())
    }

    fn check_kill(&mut self, life: Life, due: &mut Due, now: Duration) -> Verdict {
        let grace = self.settings.grace;
        let ending_since = self.ending_since;
        let hang = match &due.watched {
            Some(Watched::Kill(other, hang)) if *other == life => Some(*hang),
            Some(_) | None => None,
        };
        let failed = due.kill == Some(life);
        let worker = self.known(life, "Kill")?;
        keep(!worker.killed, || format!("{life:?} was killed twice"))?;
        let may = match ending_since {
            Some(since) => !worker.ready || now >= since + grace,
            None => worker.idle_since.is_some_and(|since| now >= since + grace),
        };
        keep(may || hang.is_some() || failed, || format!("{life:?} was killed too early"))?;
        worker.killed = true;
        worker.overdue = hang;
        if hang.is_some() {
            due.watched = None;
        }
        if failed {
            due.kill = None;
        }
        Ok(())
    }
}
