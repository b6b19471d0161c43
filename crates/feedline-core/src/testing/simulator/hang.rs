//! Which workers use the processor in the simulated world, and what a learned deadline may do to them.

use std::time::Duration;

use super::workers::{SimulatedState, SimulatedWorker};
use super::{Random, SLACK, SimulatedWorld};
use crate::worker::supervisor::{Deadline, HangAction, Incarnation, LearnedDeadline};

/// How late one look may be.
const LATE_LOOK: Duration = Duration::from_millis(15);

pub(super) fn draw_deadline(random: &mut Random) -> Deadline {
    if random.chance(300) {
        return Deadline::Never;
    }
    if random.chance(650) {
        return Deadline::After(random.micros(25_000, 2_000_000));
    }
    let shortest = random.micros(100_000, 500_000);
    let longest = shortest * random.from(1, 4) as u32;
    let action = if random.chance(250) { HangAction::Report } else { HangAction::Restart };
    Deadline::Learned(LearnedDeadline { shortest, longest, action })
}

impl SimulatedWorld {
    /// Until when a worker uses the processor at a sample that takes `when`, or that hangs.
    pub(super) fn draw_busy_time(&mut self, when: Option<Duration>) -> Duration {
        let share = self.random.below(100);
        match when {
            Some(when) if share < 50 => self.now + when,
            None if share < 25 => Duration::MAX,
            None if share < 50 => self.now + self.random.micros(0, 700_000),
            Some(_) | None => self.now,
        }
    }

    /// When a worker that hangs must be killed at the latest, if it must.
    pub(super) fn latest_kill(&self, worker: &SimulatedWorker) -> Option<Duration> {
        let dumped = self.settings.dump_time * 2 + SLACK;
        match self.settings.deadline {
            Deadline::Never
            | Deadline::Learned(LearnedDeadline { action: HangAction::Report, .. }) => None,
            Deadline::After(deadline) => Some(worker.since + deadline + dumped),
            Deadline::Learned(LearnedDeadline { shortest, longest, .. }) => {
                let quiet_since = worker.since.max(worker.busy_until);
                // A dump between two looks may move the next look by a dump time. The first look at the
                // sample and the one that sees it quiet come before the time counts.
                let looks = longest.div_duration_f64(shortest / 20) as u32 + 4;
                let looking = (shortest / 20 + LATE_LOOK) * looks;
                Some(quiet_since.saturating_add(looking + dumped + self.settings.dump_time * 2))
            }
        }
    }

    /// A learned deadline kills no worker that uses the processor, or did so a short time ago.
    pub(super) fn check_learned_kill(&mut self, incarnation: Incarnation) -> Result<(), String> {
        let Deadline::Learned(learned) = self.settings.deadline else { return Ok(()) };
        if !self.promises.is_overdue(incarnation) {
            return Ok(());
        }
        let now = self.now;
        let worker = self.worker(incarnation);
        if worker.state == SimulatedState::Dead {
            return Ok(());
        }
        let quiet_since = worker.since.max(worker.busy_until);
        if learned.action == HangAction::Report {
            return Err(self.broken(&format!("{incarnation:?} was killed, not reported")));
        }
        if now.saturating_sub(quiet_since) < learned.shortest {
            return Err(self.broken(&format!("{incarnation:?} was killed, but it works")));
        }
        self.report.kills_learned += 1;
        Ok(())
    }
}
