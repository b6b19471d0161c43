//! Checks whether the supervisor may do what it does.

use std::time::Duration;

use super::watch::Watched;
use super::{
    CheckResult, CheckedOutcome, CheckedWorker, CheckedZygote, Expected, PromiseChecker, ensure,
};
use crate::worker::supervisor::{Death, Incarnation, SupervisorAction, TaskNumber};

impl PromiseChecker {
    pub(super) fn check_action(
        &mut self,
        action: &SupervisorAction,
        expected: &mut Expected,
        now: Duration,
    ) -> CheckResult {
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
            | SupervisorAction::CapacityChanged { .. }
            | SupervisorAction::Renewed { .. }
            | SupervisorAction::Fail(_) => false,
            SupervisorAction::Stop { .. }
            | SupervisorAction::Kill { .. }
            | SupervisorAction::Discard { .. }
            | SupervisorAction::Died(_)
            | SupervisorAction::Closed => true,
        };
        ensure(running || allowed_later, || format!("{action:?} after the run had ended"))?;
        expected.ping |= matches!(
            action,
            SupervisorAction::Fork { .. }
                | SupervisorAction::Kill { .. }
                | SupervisorAction::Dump { .. }
        );
        match action {
            SupervisorAction::StartZygote { fresh } => {
                ensure(expected.start_zygote, || "a zygote was started without need".into())?;
                ensure(*fresh == self.restarted_fresh, || {
                    "a zygote of the wrong kind was started".into()
                })?;
                expected.start_zygote = false;
                self.zygote = CheckedZygote::Booting;
            }
            SupervisorAction::EndZygote => {
                ensure(expected.end_zygote, || "the zygote was ended without a reason".into())?;
                expected.end_zygote = false;
                self.zygote = CheckedZygote::Ending { since: now };
            }
            SupervisorAction::PingZygote { number } => self.check_ping(*number, expected, now)?,
            SupervisorAction::ZygoteSlow => {
                ensure(expected.zygote_slow, || "the zygote is not slow".into())?;
                expected.zygote_slow = false;
            }
            SupervisorAction::ZygoteHung => {
                ensure(expected.zygote_hung, || "the zygote does not hang".into())?;
                expected.zygote_hung = false;
            }
            SupervisorAction::Dump { incarnation } => {
                let watched = expected.watched.take();
                ensure(watched == Some(Watched::Dump(*incarnation)), || format!("{action:?}"))?;
            }
            SupervisorAction::Stalled { incarnation, seen } => {
                let watched = expected.watched.take();
                ensure(watched == Some(Watched::Stalled(*incarnation, *seen)), || {
                    format!("{action:?}")
                })?;
            }
            SupervisorAction::RestartedFresh { incarnation, seen } => {
                let watched = expected.watched.take();
                ensure(watched == Some(Watched::RestartedFresh(*incarnation, *seen)), || {
                    format!("{action:?}")
                })?;
                ensure(!self.restarted_fresh, || "a second fresh restart".into())?;
                self.restarted_fresh = true;
                expected.end_zygote = true;
            }
            SupervisorAction::CapacityChanged { most, shortage } => {
                self.check_capacity_changed(*most, *shortage)?
            }
            SupervisorAction::Renewed { incarnation } => {
                let place = expected.renewed.iter().position(|other| other == incarnation);
                let place = place.ok_or_else(|| format!("{incarnation:?} was not renewed"))?;
                expected.renewed.remove(place);
            }
            SupervisorAction::Fork { incarnation } => {
                self.check_fork(*incarnation, expected, now)?
            }
            SupervisorAction::Send { incarnation, task, trial } => {
                self.check_send(*incarnation, *task, *trial, expected, now)?
            }
            SupervisorAction::Stop { incarnation } => {
                self.check_stop(*incarnation, expected, now)?
            }
            SupervisorAction::Kill { incarnation } => {
                self.check_kill(*incarnation, expected, now)?
            }
            SupervisorAction::Accept { task } => {
                ensure(expected.accept.take() == Some(*task), || {
                    format!("no result of {task} arrived")
                })?;
                let task_record = &mut self.tasks[*task as usize];
                ensure(task_record.outcome.is_none(), || format!("{task} got a second result"))?;
                task_record.outcome = Some(CheckedOutcome::Accepted);
            }
            SupervisorAction::Discard { task, incarnation } => {
                ensure(expected.discard.take() == Some((*task, *incarnation)), || {
                    format!("a good result of {task} was discarded")
                })?;
            }
            SupervisorAction::GiveUp { task, at, why } => {
                let reported = (*task, *at, *why);
                let place = expected.give_up.iter().position(|other| *other == reported);
                let place = place.ok_or_else(|| format!("{action:?} has no reason"))?;
                expected.give_up.remove(place);
            }
            SupervisorAction::Died(death) => {
                let Death { incarnation, stage, exit, tasks, overdue, .. } = death.clone();
                let reported = (incarnation, stage, exit, tasks, overdue);
                let place = expected.died.iter().position(|other| *other == reported);
                let place =
                    place.ok_or_else(|| format!("unexpected death in the log: {death:?}"))?;
                expected.died.remove(place);
                let worker_id = death.incarnation.worker_id;
                // Only when a successor dies can an older process remain the current one.
                let current = self.workers_by_id[worker_id as usize].current();
                let without = current
                    .is_some_and(|current| current.incarnation.generation < incarnation.generation);
                let needed = self.is_needed(worker_id) && !without;
                let goes_on = running && expected.failure.is_none() && needed;
                ensure(death.replaced == goes_on && death.at == now, || {
                    format!("wrong: {death:?}")
                })?;
            }
            SupervisorAction::Fail(failure) => {
                ensure(expected.failure.take() == Some(*failure), || {
                    format!("unexpected {failure:?}")
                })?;
                self.ending_since = Some(now);
            }
            SupervisorAction::Closed => {
                ensure(self.must_be_closed(now), || "Closed came too early".into())?;
                let since = self.close_at.unwrap_or(now);
                ensure(now <= since + self.settings.grace * 3, || "Closed came too late".into())?;
                let running = self.workers_by_id.iter().flat_map(|by_id| &by_id.workers);
                for worker in running {
                    ensure(worker.killed, || format!("{:?} was left alive", worker.incarnation))?;
                }
                self.closed = true;
            }
        }
        Ok(())
    }

    fn check_fork(
        &mut self,
        incarnation: Incarnation,
        expected: &mut Expected,
        now: Duration,
    ) -> CheckResult {
        ensure(self.zygote == CheckedZygote::Ready, || format!("{incarnation:?} has no zygote"))?;
        let renewal = expected.renewal.take();
        let renews = renewal == Some(incarnation);
        ensure(renews || renewal.is_none(), || format!("{renewal:?} was to be forked"))?;
        ensure(renews || self.is_needed(incarnation.worker_id), || {
            format!("{incarnation:?} is not needed")
        })?;
        let is_retried = self.is_retried(incarnation.worker_id);
        ensure(renews || is_retried || self.has_room(), || {
            format!("there is no room for {incarnation:?}")
        })?;
        if let Some(at) = self.next_fork_retry(incarnation.worker_id) {
            ensure(now >= at, || format!("{incarnation:?} was retried at {now:?}, before {at:?}"))?;
        }
        let by_id = self.by_id(incarnation.worker_id);
        let vacant = by_id.current().is_none();
        ensure(vacant || renews, || {
            format!("{incarnation:?} is the second process of its worker")
        })?;
        ensure(by_id.workers.len() < 2, || {
            format!("{incarnation:?} is the third process of its worker")
        })?;
        ensure(incarnation.generation == by_id.forks, || {
            format!("{incarnation:?} is out of order")
        })?;
        by_id.forks += 1;
        by_id.workers.push(CheckedWorker::new(incarnation));
        Ok(())
    }

    fn check_send(
        &mut self,
        incarnation: Incarnation,
        task: TaskNumber,
        trial: Option<u64>,
        expected: &mut Expected,
        now: Duration,
    ) -> CheckResult {
        ensure(self.zygote == CheckedZygote::Ready, || {
            format!("{incarnation:?} ends with its zygote")
        })?;
        if expected.again == Some((incarnation, task)) {
            expected.again = None;
            return ensure(trial.is_none(), || format!("{task} is retried"));
        }
        let task_record = self.tasks.get(task as usize).ok_or("an unknown task was sent")?;
        let pin = task_record.pin;
        ensure(task_record.outcome.is_none(), || format!("{task} was sent after its result"))?;
        ensure(!task_record.held, || format!("{task} was sent twice"))?;
        ensure(pin.is_none_or(|worker_id| worker_id == incarnation.worker_id), || {
            format!("{task} went to {incarnation:?}")
        })?;
        let wanted = task_record.trial.map(|(_, offset)| offset);
        ensure(wanted == trial, || format!("{task} was sent with {trial:?} for {wanted:?}"))?;
        if let Some((worker_id, _)) = task_record.trial {
            ensure(worker_id == incarnation.worker_id, || {
                format!("{task} is tried by another worker")
            })?;
        } else {
            let tries = self.trials(incarnation.worker_id).next();
            ensure(tries.is_none(), || format!("{task} was sent before the trial of {tries:?}"))?;
        }
        if pin.is_some() && trial.is_none() {
            self.check_turn(incarnation, task)?;
        }
        let older = (self.settled as TaskNumber..task).find(|older| {
            let task_record = &self.tasks[*older as usize];
            let is_other = pin.is_none() && (task_record.trial.is_some() || trial.is_some());
            task_record.pin == pin && self.waits_for(*older) && !is_other
        });
        ensure(older.is_none(), || format!("{task} was sent before {older:?}"))?;
        let depth = self.settings.depth as usize;
        let least = self.available().map(|worker| worker.assigned.len()).min().unwrap_or(0);
        let by_id = &self.workers_by_id[incarnation.worker_id as usize];
        ensure(by_id.is_current(incarnation), || {
            format!("{incarnation:?} is not the current process")
        })?;
        let in_order = (pin.is_none() && trial.is_none()) || by_id.is_handed_over();
        ensure(in_order, || format!("{task} was sent to {incarnation:?} too early"))?;
        let worker = self.known(incarnation, "Send")?;
        ensure(worker.takes_tasks(), || {
            format!("{task} was sent to {incarnation:?}, which takes no tasks")
        })?;
        ensure(worker.trial.is_none(), || format!("{task} disturbs the trial of {incarnation:?}"))?;
        if pin.is_some() {
            let in_order = worker.newest_pinned.is_none_or(|newest| newest < task);
            ensure(in_order, || format!("{task} reached {incarnation:?} after a newer one"))?;
            worker.newest_pinned = Some(task);
        } else if trial.is_none() {
            let held = worker.assigned.len();
            ensure(held < depth && held == least, || {
                format!("{incarnation:?} has enough: {held}")
            })?;
        }
        if trial.is_some() {
            let alone = worker.fresh && worker.assigned.is_empty();
            ensure(alone, || format!("{incarnation:?} tries {task} and is not fresh"))?;
        }
        worker.fresh = false;
        worker.trial = trial;
        if worker.assigned.is_empty() {
            worker.busy_since = now;
        }
        worker.assigned.push(task);
        let task_record = &mut self.tasks[task as usize];
        task_record.trial = None;
        task_record.held = true;
        task_record.sent += 1;
        self.resent += u64::from(task_record.sent > 1);
        Ok(())
    }

    fn check_stop(
        &mut self,
        incarnation: Incarnation,
        expected: &mut Expected,
        now: Duration,
    ) -> CheckResult {
        let running = self.is_running();
        if expected.stop == Some(incarnation) {
            expected.stop = None;
        } else if running {
            let is_surplus = self.is_surplus(incarnation);
            self.surplus_ended += u64::from(is_surplus);
            let makes_room = is_surplus || self.may_make_room(incarnation);
            let retired = self.by_id(incarnation.worker_id).retired
                && !self.waits(Some(incarnation.worker_id));
            let tries = self.trials(incarnation.worker_id).next().is_some();
            let worker = self.known(incarnation, "Stop")?;
            // It has worked, so a fresh process must do the trial.
            let stale = tries && !worker.fresh;
            let busy = worker.trial.is_some() || (tries && worker.fresh);
            ensure(((retired || stale) && !busy) || makes_room, || {
                format!("{incarnation:?} is still needed")
            })?;
        }
        let worker = self.known(incarnation, "Stop")?;
        ensure(worker.takes_tasks(), || format!("Stop for {incarnation:?}, which takes no tasks"))?;
        worker.stopped = true;
        worker.idle_since = worker.assigned.is_empty().then_some(now);
        Ok(())
    }

    fn check_kill(
        &mut self,
        incarnation: Incarnation,
        expected: &mut Expected,
        now: Duration,
    ) -> CheckResult {
        let grace = self.settings.grace;
        let ending_since = self.ending_since;
        let hang = match &expected.watched {
            Some(Watched::Kill(other, hang)) if *other == incarnation => Some(*hang),
            Some(_) | None => None,
        };
        let failed = expected.kill == Some(incarnation);
        let worker = self.known(incarnation, "Kill")?;
        ensure(!worker.killed, || format!("{incarnation:?} was killed twice"))?;
        let may = match ending_since {
            Some(since) => !worker.ready || now >= since + grace,
            None => worker.idle_since.is_some_and(|since| now >= since + grace),
        };
        ensure(may || hang.is_some() || failed, || {
            format!("{incarnation:?} was killed too early")
        })?;
        worker.killed = true;
        worker.overdue = hang;
        if hang.is_some() {
            expected.watched = None;
        }
        if failed {
            expected.kill = None;
        }
        Ok(())
    }
}
