//! Whether what the supervisor does may be done.

use std::time::Duration;

use super::watch::Watched;
use super::{Checked, CheckedOutcome, CheckedWorker, CheckedZygote, Due, PromiseChecker, keep};
use crate::worker::supervisor::{Death, Incarnation, SupervisorAction, TaskNumber};

impl PromiseChecker {
    pub(super) fn check_action(
        &mut self,
        action: &SupervisorAction,
        due: &mut Due,
        now: Duration,
    ) -> Checked {
        let running = self.is_running();
        let allowed_later = match action {
            SupervisorAction::StartZygote { .. }
            | SupervisorAction::EndZygote
            | SupervisorAction::PingZygote { .. }
            | SupervisorAction::ZygoteSlow
            | SupervisorAction::ZygoteHung
            | SupervisorAction::Fork { .. }
            | SupervisorAction::Send { .. }
            | SupervisorAction::Accept { .. }
            | SupervisorAction::GiveUp { .. }
            | SupervisorAction::Dump { .. }
            | SupervisorAction::Stalled { .. }
            | SupervisorAction::RestartedFresh { .. }
            | SupervisorAction::Retired { .. }
            | SupervisorAction::Fail(_) => false,
            SupervisorAction::Stop { .. }
            | SupervisorAction::Kill { .. }
            | SupervisorAction::Discard { .. }
            | SupervisorAction::Died(_)
            | SupervisorAction::Closed => true,
        };
        keep(running || allowed_later, || format!("{action:?} after the run had ended"))?;
        due.ping |= matches!(
            action,
            SupervisorAction::Fork { .. }
                | SupervisorAction::Kill { .. }
                | SupervisorAction::Dump { .. }
        );
        match action {
            SupervisorAction::StartZygote { fresh } => {
                keep(due.bear, || "a zygote was started that nobody misses".into())?;
                keep(*fresh == self.restarted_fresh, || {
                    "a zygote of the wrong kind was started".into()
                })?;
                due.bear = false;
                self.zygote = CheckedZygote::Booting;
            }
            SupervisorAction::EndZygote => {
                keep(due.end_zygote, || "the zygote was ended without a reason".into())?;
                due.end_zygote = false;
                self.zygote = CheckedZygote::ExitKind { since: now };
            }
            SupervisorAction::PingZygote { number } => self.check_ping(*number, due, now)?,
            SupervisorAction::ZygoteSlow => {
                keep(due.zygote_slow, || "the zygote is not slow".into())?;
                due.zygote_slow = false;
            }
            SupervisorAction::ZygoteHung => {
                keep(due.zygote_hung, || "the zygote does not hang".into())?;
                due.zygote_hung = false;
            }
            SupervisorAction::Dump { incarnation } => {
                let watched = due.watched.take();
                keep(watched == Some(Watched::CheckedDump(*incarnation)), || {
                    format!("{action:?}")
                })?;
            }
            SupervisorAction::Stalled { incarnation, seen } => {
                let watched = due.watched.take();
                keep(watched == Some(Watched::Stalled(*incarnation, *seen)), || {
                    format!("{action:?}")
                })?;
            }
            SupervisorAction::RestartedFresh { incarnation, seen } => {
                let watched = due.watched.take();
                keep(watched == Some(Watched::RestartedFresh(*incarnation, *seen)), || {
                    format!("{action:?}")
                })?;
                keep(!self.restarted_fresh, || "a second rebirth".into())?;
                self.restarted_fresh = true;
                due.end_zygote = true;
            }
            SupervisorAction::Retired { incarnation } => {
                let place = due.retired.iter().position(|other| other == incarnation);
                let place = place.ok_or_else(|| format!("{incarnation:?} has not retired"))?;
                due.retired.remove(place);
            }
            SupervisorAction::Fork { incarnation } => self.check_fork(*incarnation, due, now)?,
            SupervisorAction::Send { incarnation, task, trial } => {
                self.check_send(*incarnation, *task, *trial, due, now)?
            }
            SupervisorAction::Stop { incarnation } => self.check_stop(*incarnation, due, now)?,
            SupervisorAction::Kill { incarnation } => self.check_kill(*incarnation, due, now)?,
            SupervisorAction::Accept { task } => {
                keep(due.accept.take() == Some(*task), || format!("nobody answered {task}"))?;
                let entry = &mut self.entries[*task as usize];
                keep(entry.outcome.is_none(), || format!("{task} got a second result"))?;
                entry.outcome = Some(CheckedOutcome::TaskResult);
            }
            SupervisorAction::Discard { task, incarnation } => {
                keep(due.discard.take() == Some((*task, *incarnation)), || {
                    format!("a good answer to {task} was thrown away")
                })?;
            }
            SupervisorAction::GiveUp { task, at, why } => {
                let reported = (*task, *at, *why);
                let place = due.give_up.iter().position(|other| *other == reported);
                let place = place.ok_or_else(|| format!("{action:?} has no reason"))?;
                due.give_up.remove(place);
            }
            SupervisorAction::Died(death) => {
                let Death { incarnation, stage, exit, tasks, overdue, .. } = death.clone();
                let reported = (incarnation, stage, exit, tasks, overdue);
                let place = due.died.iter().position(|other| *other == reported);
                let place = place.ok_or_else(|| format!("the log tells of {death:?}"))?;
                due.died.remove(place);
                let worker_id = death.incarnation.worker_id;
                // Only the death of a successor leaves a holder behind who was there before.
                let holder = self.workers_by_id[worker_id as usize].holder();
                let without = holder
                    .is_some_and(|holder| holder.incarnation.generation < incarnation.generation);
                let needed = self.is_needed(worker_id) && !without;
                let goes_on = running && due.failure.is_none() && needed;
                keep(death.replaced == goes_on && death.at == now, || format!("wrong: {death:?}"))?;
            }
            SupervisorAction::Fail(failure) => {
                keep(due.failure.take() == Some(*failure), || format!("unfounded {failure:?}"))?;
                self.ending_since = Some(now);
            }
            SupervisorAction::Closed => {
                keep(self.must_be_closed(now), || "Closed came too early".into())?;
                let since = self.close_at.unwrap_or(now);
                keep(now <= since + self.settings.grace * 3, || "Closed came too late".into())?;
                let running = self.workers_by_id.iter().flat_map(|by_id| &by_id.workers);
                for worker in running {
                    keep(worker.killed, || format!("{:?} was left alive", worker.incarnation))?;
                }
                self.closed = true;
            }
        }
        Ok(())
    }

    fn check_fork(&mut self, incarnation: Incarnation, due: &mut Due, now: Duration) -> Checked {
        keep(self.zygote == CheckedZygote::Ready, || format!("{incarnation:?} has no zygote"))?;
        let renewal = due.renewal.take();
        let renews = renewal == Some(incarnation);
        keep(renews || renewal.is_none(), || format!("{renewal:?} was to be forked"))?;
        keep(renews || self.is_needed(incarnation.worker_id), || {
            format!("{incarnation:?} is not needed")
        })?;
        if let Some(at) = self.next_try(incarnation.worker_id) {
            keep(now >= at, || format!("{incarnation:?} was retried at {now:?}, before {at:?}"))?;
        }
        let by_id = self.by_id(incarnation.worker_id);
        let vacant = by_id.holder().is_none();
        keep(vacant || renews, || format!("{incarnation:?} is a second one on its post"))?;
        keep(by_id.workers.len() < 2, || format!("{incarnation:?} is a third one on its post"))?;
        keep(incarnation.generation == by_id.forks, || format!("{incarnation:?} is out of order"))?;
        by_id.forks += 1;
        by_id.workers.push(CheckedWorker::new(incarnation));
        Ok(())
    }

    fn check_send(
        &mut self,
        incarnation: Incarnation,
        task: TaskNumber,
        trial: Option<u64>,
        due: &mut Due,
        now: Duration,
    ) -> Checked {
        keep(self.zygote == CheckedZygote::Ready, || {
            format!("{incarnation:?} goes with its zygote")
        })?;
        if due.again == Some((incarnation, task)) {
            due.again = None;
            return keep(trial.is_none(), || format!("{task} is retried"));
        }
        let entry = self.entries.get(task as usize).ok_or("a task nobody submitted was sent")?;
        let pin = entry.pin;
        keep(entry.outcome.is_none(), || format!("{task} was sent after its result"))?;
        keep(!entry.held, || format!("{task} was sent twice"))?;
        keep(pin.is_none_or(|worker_id| worker_id == incarnation.worker_id), || {
            format!("{task} went to {incarnation:?}")
        })?;
        let wanted = entry.trial.map(|(_, position)| position);
        keep(wanted == trial, || format!("{task} was sent with {trial:?} for {wanted:?}"))?;
        if let Some((worker_id, _)) = entry.trial {
            keep(worker_id == incarnation.worker_id, || {
                format!("{task} is tried on another post")
            })?;
        } else {
            let tries = self.trials(incarnation.worker_id).next();
            keep(tries.is_none(), || format!("{task} was sent before the trial of {tries:?}"))?;
        }
        let older = (self.settled as TaskNumber..task).find(|older| {
            let entry = &self.entries[*older as usize];
            let is_other = pin.is_none() && (entry.trial.is_some() || trial.is_some());
            entry.pin == pin && self.waits_for(*older) && !is_other
        });
        keep(older.is_none(), || format!("{task} was sent before {older:?}"))?;
        let depth = self.settings.depth as usize;
        let least = self.able().map(|worker| worker.assigned.len()).min().unwrap_or(0);
        let by_id = &self.workers_by_id[incarnation.worker_id as usize];
        keep(by_id.is_holder(incarnation), || format!("{incarnation:?} does not hold its post"))?;
        let in_order = (pin.is_none() && trial.is_none()) || by_id.is_handed_over();
        keep(in_order, || format!("{task} came to {incarnation:?} too early"))?;
        let worker = self.known(incarnation, "Send")?;
        keep(worker.is_at_work(), || format!("{task} was sent to {incarnation:?}, not at work"))?;
        keep(worker.trial.is_none(), || format!("{task} disturbs the trial of {incarnation:?}"))?;
        if pin.is_some() {
            let in_order = worker.newest_pinned.is_none_or(|newest| newest < task);
            keep(in_order, || format!("{task} reached {incarnation:?} after a newer one"))?;
            worker.newest_pinned = Some(task);
        } else if trial.is_none() {
            let held = worker.assigned.len();
            keep(held < depth && held == least, || format!("{incarnation:?} has enough: {held}"))?;
        }
        if trial.is_some() {
            let alone = worker.fresh && worker.assigned.is_empty();
            keep(alone, || format!("{incarnation:?} tries {task} and is not fresh"))?;
        }
        worker.fresh = false;
        worker.trial = trial;
        if worker.assigned.is_empty() {
            worker.busy_since = now;
        }
        worker.assigned.push(task);
        let entry = &mut self.entries[task as usize];
        entry.trial = None;
        entry.held = true;
        entry.sent += 1;
        self.resent += u64::from(entry.sent > 1);
        Ok(())
    }

    fn check_stop(&mut self, incarnation: Incarnation, due: &mut Due, now: Duration) -> Checked {
        let running = self.is_running();
        if due.stop == Some(incarnation) {
            due.stop = None;
        } else if running {
            let retired = self.by_id(incarnation.worker_id).retired
                && !self.waits(Some(incarnation.worker_id));
            let tries = self.trials(incarnation.worker_id).next().is_some();
            let worker = self.known(incarnation, "Stop")?;
            // It has worked, and another one must come for the trial.
            let stale = tries && !worker.fresh;
            let busy = worker.trial.is_some() || (tries && worker.fresh);
            keep((retired || stale) && !busy, || format!("{incarnation:?} is still needed"))?;
        }
        let worker = self.known(incarnation, "Stop")?;
        keep(worker.is_at_work(), || format!("Stop for {incarnation:?}, which is not at work"))?;
        worker.stopped = true;
        worker.idle_since = worker.assigned.is_empty().then_some(now);
        Ok(())
    }

    fn check_kill(&mut self, incarnation: Incarnation, due: &mut Due, now: Duration) -> Checked {
        let grace = self.settings.grace;
        let ending_since = self.ending_since;
        let hang = match &due.watched {
            Some(Watched::Kill(other, hang)) if *other == incarnation => Some(*hang),
            Some(_) | None => None,
        };
        let failed = due.kill == Some(incarnation);
        let worker = self.known(incarnation, "Kill")?;
        keep(!worker.killed, || format!("{incarnation:?} was killed twice"))?;
        let may = match ending_since {
            Some(since) => !worker.ready || now >= since + grace,
            None => worker.idle_since.is_some_and(|since| now >= since + grace),
        };
        keep(may || hang.is_some() || failed, || format!("{incarnation:?} was killed too early"))?;
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
