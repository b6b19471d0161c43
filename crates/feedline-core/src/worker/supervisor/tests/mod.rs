//! What the supervisor decides, case by case. The simulator covers the combinations.

mod capacity;
mod concurrency;
mod hang;
mod renewal;
mod trial;
mod watch;
mod zygote_watch;

use super::*;

const NOW: Duration = Duration::from_millis(1);
const GRACE: Duration = Duration::from_secs(5);
const DUMP: Duration = Duration::from_secs(2);
const PATIENCE: Duration = Duration::from_secs(30);
const START: Duration = Duration::from_secs(300);
const KILLED: ExitKind = ExitKind::Killed(9);

/// A supervisor whose zygote answers each ping at once; the pings are left out of the actions.
struct Healthy(Supervisor);

impl Healthy {
    fn new(settings: SupervisorSettings) -> Healthy {
        Healthy(Supervisor::new(settings))
    }

    fn handle(&mut self, event: WorkerEvent, now: Duration) -> Vec<SupervisorAction> {
        let mut actions = self.0.handle(event, now);
        // A ping is always the last action of a step.
        let ping = match actions.last() {
            Some(&SupervisorAction::PingZygote { number }) => Some(number),
            Some(_) | None => None,
        };
        if ping.is_some() {
            actions.pop();
            let event = WorkerEvent::ZygoteAnswered { ping };
            assert_eq!(self.0.handle(event, now), []);
        }
        actions
    }
}

impl std::ops::Deref for Healthy {
    type Target = Supervisor;

    fn deref(&self) -> &Supervisor {
        &self.0
    }
}

impl std::ops::DerefMut for Healthy {
    fn deref_mut(&mut self) -> &mut Supervisor {
        &mut self.0
    }
}

fn settings(worker_count: u32) -> SupervisorSettings {
    SupervisorSettings {
        worker_count,
        depth: 2,
        max_deaths: 3,
        within: Duration::from_secs(60),
        attempts: None,
        refused_for: Duration::from_secs(1),
        grace: GRACE,
        replace: true,
        suspect_after: None,
        deadline: Deadline::Never,
        start_limit: START,
        hangs: 1,
        stall: None,
        dump_time: DUMP,
        may_be_fresh: false,
        zygote_patience: PATIENCE,
        zygote_start: START,
    }
}

fn incarnation(worker_id: WorkerId, generation: u32) -> Incarnation {
    Incarnation { worker_id, generation }
}

fn send(worker_id: WorkerId, generation: u32, task: TaskNumber) -> SupervisorAction {
    SupervisorAction::Send { incarnation: incarnation(worker_id, generation), task, trial: None }
}

/// A run whose workers are forked, and not ready yet.
fn booting(settings: SupervisorSettings) -> Healthy {
    let mut supervisor = Healthy::new(settings);
    assert_eq!(supervisor.start(Duration::ZERO), [SupervisorAction::StartZygote { fresh: false }]);
    supervisor.handle(WorkerEvent::ZygoteReady, NOW);
    supervisor
}

/// A run in which every worker is ready.
fn ready(settings: SupervisorSettings) -> Healthy {
    let worker_count = settings.worker_count;
    let mut supervisor = booting(settings);
    for worker_id in 0..worker_count {
        supervisor.handle(WorkerEvent::Ready { incarnation: incarnation(worker_id, 0) }, NOW);
    }
    supervisor
}

fn submit(
    supervisor: &mut Healthy,
    task: TaskNumber,
    worker_id: Option<WorkerId>,
) -> Vec<SupervisorAction> {
    supervisor.handle(WorkerEvent::Submitted { task, worker_id }, NOW)
}

fn end(
    supervisor: &mut Healthy,
    incarnation: Incarnation,
    exit: ExitKind,
    now: Duration,
) -> Vec<SupervisorAction> {
    supervisor.handle(WorkerEvent::Ended { incarnation, exit, at: None, shortage: None }, now)
}

/// A worker dies at this offset of its first task.
fn die_at(
    supervisor: &mut Healthy,
    incarnation: Incarnation,
    at: Option<u64>,
) -> Vec<SupervisorAction> {
    supervisor.handle(WorkerEvent::Ended { incarnation, exit: KILLED, at, shortage: None }, NOW)
}

fn result(
    supervisor: &mut Healthy,
    incarnation: Incarnation,
    task: TaskNumber,
) -> Vec<SupervisorAction> {
    supervisor.handle(WorkerEvent::TaskDone { incarnation, task }, NOW)
}

fn is_ready(supervisor: &mut Healthy, incarnation: Incarnation) -> Vec<SupervisorAction> {
    supervisor.handle(WorkerEvent::Ready { incarnation }, NOW)
}

fn fork(worker_id: WorkerId, generation: u32) -> SupervisorAction {
    SupervisorAction::Fork { incarnation: incarnation(worker_id, generation) }
}

/// All actions except the log of deaths.
fn without_deaths(actions: Vec<SupervisorAction>) -> Vec<SupervisorAction> {
    actions.into_iter().filter(|action| !matches!(action, SupervisorAction::Died(_))).collect()
}

#[test]
fn every_worker_is_forked_in_order_once_the_zygote_is_ready() {
    let mut supervisor = Healthy::new(settings(3));
    supervisor.start(Duration::ZERO);
    let forks = supervisor.handle(WorkerEvent::ZygoteReady, NOW);
    assert_eq!(
        forks,
        [0, 1, 2]
            .map(|worker_id| SupervisorAction::Fork { incarnation: incarnation(worker_id, 0) })
    );
}

#[test]
fn a_killed_worker_loses_its_task_once_and_is_replaced() {
    let mut supervisor = ready(settings(1));
    submit(&mut supervisor, 7, Some(0));
    let actions = end(&mut supervisor, incarnation(0, 0), KILLED, NOW);
    let death = Death {
        incarnation: incarnation(0, 0),
        exit: KILLED,
        at: NOW,
        stage: WorkerStage::Busy,
        tasks: vec![7],
        replaced: true,
        overdue: false,
    };
    assert_eq!(
        actions,
        [
            SupervisorAction::Died(death.clone()),
            SupervisorAction::Fork { incarnation: incarnation(0, 1) }
        ]
    );
    assert_eq!(supervisor.deaths(), [death]);
    let actions = supervisor.handle(WorkerEvent::Ready { incarnation: incarnation(0, 1) }, NOW);
    assert_eq!(actions, [send(0, 1, 7)]);
    assert_eq!(end(&mut supervisor, incarnation(0, 0), KILLED, NOW), []);
}

#[test]
fn lost_tasks_are_sent_again_in_their_order_and_before_newer_ones() {
    let mut supervisor = ready(settings(1));
    for task in 0..3 {
        submit(&mut supervisor, task, Some(0));
    }
    supervisor.handle(WorkerEvent::TaskDone { incarnation: incarnation(0, 0), task: 0 }, NOW);
    end(&mut supervisor, incarnation(0, 0), KILLED, NOW);
    submit(&mut supervisor, 3, Some(0));
    let actions = supervisor.handle(WorkerEvent::Ready { incarnation: incarnation(0, 1) }, NOW);
    assert_eq!(actions, [send(0, 1, 1), send(0, 1, 2), send(0, 1, 3)]);
}

#[test]
fn a_result_counts_once_and_only_from_the_worker_that_has_the_task() {
    let mut supervisor = ready(settings(1));
    submit(&mut supervisor, 0, Some(0));
    end(&mut supervisor, incarnation(0, 0), KILLED, NOW);
    supervisor.handle(WorkerEvent::Ready { incarnation: incarnation(0, 1) }, NOW);
    let mut result =
        |incarnation| supervisor.handle(WorkerEvent::TaskDone { incarnation, task: 0 }, NOW);
    assert_eq!(
        result(incarnation(0, 0)),
        [SupervisorAction::Discard { task: 0, incarnation: incarnation(0, 0) }]
    );
    assert_eq!(result(incarnation(0, 1)), [SupervisorAction::Accept { task: 0 }]);
    assert_eq!(
        result(incarnation(0, 1)),
        [SupervisorAction::Discard { task: 0, incarnation: incarnation(0, 1) }]
    );
    assert_eq!(supervisor.outstanding(), 0);
}

#[test]
fn unpinned_tasks_go_to_the_least_busy_worker_and_lost_ones_are_sent_first() {
    let mut supervisor = ready(settings(2));
    let sent: Vec<SupervisorAction> =
        (0..6).flat_map(|task| submit(&mut supervisor, task, None)).collect();
    assert_eq!(sent, [send(0, 0, 0), send(1, 0, 1), send(0, 0, 2), send(1, 0, 3)]);
    end(&mut supervisor, incarnation(0, 0), KILLED, NOW);
    let actions =
        supervisor.handle(WorkerEvent::TaskDone { incarnation: incarnation(1, 0), task: 1 }, NOW);
    assert_eq!(actions, [SupervisorAction::Accept { task: 1 }, send(1, 0, 0)]);
    let actions = supervisor.handle(WorkerEvent::Ready { incarnation: incarnation(0, 1) }, NOW);
    assert_eq!(actions, [send(0, 1, 2), send(0, 1, 4)]);
}

#[test]
fn one_death_more_than_allowed_ends_the_run() {
    let mut supervisor = ready(settings(4));
    for worker_id in 0..3 {
        let actions = end(&mut supervisor, incarnation(worker_id, 0), ExitKind::Exited(0), NOW);
        assert_eq!(
            without_deaths(actions),
            [SupervisorAction::Fork { incarnation: incarnation(worker_id, 1) }]
        );
    }
    let actions = without_deaths(end(&mut supervisor, incarnation(3, 0), KILLED, NOW));
    assert_eq!(actions[0], SupervisorAction::Fail(RunFailure::TooManyDeaths));
    assert_eq!(
        actions[1..],
        [0, 1, 2]
            .map(|worker_id| SupervisorAction::Kill { incarnation: incarnation(worker_id, 1) })
    );
    assert_eq!(supervisor.deaths().len(), 4);
}

#[test]
fn old_deaths_do_not_count() {
    let mut supervisor = ready(settings(1));
    for generation in 0..10 {
        let now = Duration::from_secs(61) * generation;
        supervisor.handle(WorkerEvent::Ready { incarnation: incarnation(0, generation) }, now);
        let actions = without_deaths(end(&mut supervisor, incarnation(0, generation), KILLED, now));
        assert_eq!(
            actions,
            [SupervisorAction::Fork { incarnation: incarnation(0, generation + 1) }]
        );
    }
}

#[test]
fn a_worker_that_dies_starting_three_times_in_a_row_ends_the_run() {
    let mut supervisor = booting(settings(1));
    for generation in 0..2 {
        end(&mut supervisor, incarnation(0, generation), ExitKind::Exited(1), NOW);
    }
    let actions = without_deaths(end(&mut supervisor, incarnation(0, 2), ExitKind::Exited(1), NOW));
    assert_eq!(
        actions,
        [SupervisorAction::Fail(RunFailure::DiesStarting { incarnation: incarnation(0, 2) })]
    );
}

#[test]
fn a_worker_that_cannot_start_ends_the_run() {
    let mut supervisor = booting(settings(1));
    let actions =
        supervisor.handle(WorkerEvent::StartFailed { incarnation: incarnation(0, 0) }, NOW);
    let failure = RunFailure::CannotStart { incarnation: incarnation(0, 0) };
    assert_eq!(
        actions,
        [
            SupervisorAction::Fail(failure),
            SupervisorAction::Kill { incarnation: incarnation(0, 0) }
        ]
    );
}

#[test]
fn a_refused_fork_is_retried_with_growing_waits_and_then_ends_the_run() {
    let mut supervisor = booting(settings(1));
    let mut now = NOW;
    let mut waits = Vec::new();
    for generation in 0..20 {
        let refused =
            WorkerEvent::Refused { incarnation: incarnation(0, generation), transient: true };
        let actions = supervisor.handle(refused, now);
        let Some(deadline) = supervisor.next_deadline() else {
            let failure = RunFailure::Refused { worker_id: 0, transient: true };
            assert_eq!(actions, [SupervisorAction::Fail(failure)]);
            break;
        };
        waits.push((deadline - now).as_millis());
        now = deadline;
        let actions = supervisor.handle(WorkerEvent::TimePassed, now);
        assert_eq!(
            actions,
            [SupervisorAction::Fork { incarnation: incarnation(0, generation + 1) }]
        );
    }
    assert_eq!(waits, [10, 20, 40, 80, 160, 320, 370]);
}

#[test]
fn a_worker_that_is_needed_again_starts_with_the_first_backoff() {
    let later = NOW + Duration::from_secs(100);
    let refused = |generation| WorkerEvent::Refused {
        incarnation: incarnation(0, generation),
        transient: true,
    };
    let retire = WorkerEvent::Retire { worker_id: 0 };
    for before in [[retire, refused(0)], [refused(0), retire]] {
        let mut supervisor = booting(settings(1));
        for event in before {
            assert_eq!(supervisor.handle(event, NOW), []);
        }
        assert_eq!(supervisor.next_deadline(), None);
        let actions =
            supervisor.handle(WorkerEvent::Submitted { task: 0, worker_id: Some(0) }, later);
        assert_eq!(actions, [SupervisorAction::Fork { incarnation: incarnation(0, 1) }]);
        assert_eq!(supervisor.handle(refused(1), later), []);
        assert_eq!(supervisor.next_deadline(), Some(later + FIRST_BACKOFF));
    }
}

#[test]
fn a_permanent_refusal_ends_the_run_at_once() {
    let mut supervisor = booting(settings(1));
    let refused = WorkerEvent::Refused { incarnation: incarnation(0, 0), transient: false };
    let failure = RunFailure::Refused { worker_id: 0, transient: false };
    assert_eq!(supervisor.handle(refused, NOW), [SupervisorAction::Fail(failure)]);
}

#[test]
fn a_task_that_kills_its_workers_is_given_up_and_later_tasks_are_not() {
    let mut supervisor = ready(SupervisorSettings { attempts: Some(2), ..settings(1) });
    submit(&mut supervisor, 0, Some(0));
    submit(&mut supervisor, 1, Some(0));
    end(&mut supervisor, incarnation(0, 0), KILLED, NOW);
    supervisor.handle(WorkerEvent::Ready { incarnation: incarnation(0, 1) }, NOW);
    let actions = without_deaths(end(&mut supervisor, incarnation(0, 1), KILLED, NOW));
    assert_eq!(
        actions,
        [
            SupervisorAction::GiveUp { task: 0, at: None, why: GiveUpReason::Kills },
            SupervisorAction::Fork { incarnation: incarnation(0, 2) }
        ]
    );
    let actions = supervisor.handle(WorkerEvent::Ready { incarnation: incarnation(0, 2) }, NOW);
    assert_eq!(actions, [send(0, 2, 1)]);
}

#[test]
fn the_death_of_a_zygote_with_all_its_workers_counts_as_one_death() {
    let mut supervisor =
        ready(SupervisorSettings { max_deaths: 1, attempts: Some(1), ..settings(2) });
    submit(&mut supervisor, 0, Some(1));
    let actions = supervisor.handle(WorkerEvent::ZygoteEnded, NOW);
    assert_eq!(without_deaths(actions), [SupervisorAction::StartZygote { fresh: false }]);
    assert_eq!(supervisor.deaths().len(), 2);
    let forks = supervisor.handle(WorkerEvent::ZygoteReady, NOW);
    assert_eq!(
        forks,
        [0, 1].map(|worker_id| SupervisorAction::Fork { incarnation: incarnation(worker_id, 1) })
    );
    let actions = supervisor.handle(WorkerEvent::Ready { incarnation: incarnation(1, 1) }, NOW);
    assert_eq!(actions, [send(1, 1, 0)]);
}

#[test]
fn a_zygote_that_ends_three_times_before_it_is_ready_ends_the_run() {
    let mut supervisor = Healthy::new(settings(1));
    supervisor.start(Duration::ZERO);
    for _ in 0..2 {
        assert_eq!(
            supervisor.handle(WorkerEvent::ZygoteEnded, NOW),
            [SupervisorAction::StartZygote { fresh: false }]
        );
    }
    let actions = supervisor.handle(WorkerEvent::ZygoteEnded, NOW);
    assert_eq!(actions, [SupervisorAction::Fail(RunFailure::ZygoteCannotStart)]);
    assert_eq!(supervisor.handle(WorkerEvent::Close, NOW), [SupervisorAction::Closed]);
}

#[test]
fn without_replacement_a_death_ends_the_run_as_soon_as_there_is_work() {
    let mut supervisor = ready(SupervisorSettings { replace: false, ..settings(2) });
    assert_eq!(without_deaths(end(&mut supervisor, incarnation(0, 0), KILLED, NOW)), []);
    assert_eq!(submit(&mut supervisor, 0, Some(1)), [send(1, 0, 0)]);
    let actions = submit(&mut supervisor, 1, Some(0));
    assert_eq!(
        actions[0],
        SupervisorAction::Fail(RunFailure::Death { incarnation: incarnation(0, 0) })
    );
    let mut supervisor = ready(SupervisorSettings { replace: false, ..settings(1) });
    submit(&mut supervisor, 0, None);
    let actions = without_deaths(end(&mut supervisor, incarnation(0, 0), KILLED, NOW));
    assert_eq!(
        actions,
        [SupervisorAction::Fail(RunFailure::Death { incarnation: incarnation(0, 0) })]
    );
}

#[test]
fn a_retired_worker_ends_without_a_death_and_is_forked_again_for_a_new_task() {
    let mut supervisor = ready(settings(1));
    let actions = supervisor.handle(WorkerEvent::Retire { worker_id: 0 }, NOW);
    assert_eq!(actions, [SupervisorAction::Stop { incarnation: incarnation(0, 0) }]);
    assert_eq!(end(&mut supervisor, incarnation(0, 0), ExitKind::Exited(0), NOW), []);
    assert_eq!(
        submit(&mut supervisor, 0, Some(0)),
        [SupervisorAction::Fork { incarnation: incarnation(0, 1) }]
    );
}

#[test]
fn a_retired_worker_may_finish_its_tasks_and_is_killed_if_it_stays_after_that() {
    let mut supervisor = ready(settings(1));
    submit(&mut supervisor, 0, Some(0));
    supervisor.handle(WorkerEvent::Retire { worker_id: 0 }, NOW);
    assert_eq!(supervisor.next_deadline(), None);
    supervisor.handle(WorkerEvent::TaskDone { incarnation: incarnation(0, 0), task: 0 }, NOW);
    assert_eq!(supervisor.next_deadline(), Some(NOW + GRACE));
    let actions = supervisor.handle(WorkerEvent::TimePassed, NOW + GRACE);
    assert_eq!(actions, [SupervisorAction::Kill { incarnation: incarnation(0, 0) }]);
    assert_eq!(end(&mut supervisor, incarnation(0, 0), KILLED, NOW + GRACE), []);
}

#[test]
fn a_retired_worker_that_leaves_tasks_undone_has_died() {
    let mut supervisor = ready(settings(1));
    submit(&mut supervisor, 0, Some(0));
    supervisor.handle(WorkerEvent::Retire { worker_id: 0 }, NOW);
    let actions = end(&mut supervisor, incarnation(0, 0), ExitKind::Exited(0), NOW);
    assert_eq!(
        without_deaths(actions),
        [SupervisorAction::Fork { incarnation: incarnation(0, 1) }]
    );
    let actions = supervisor.handle(WorkerEvent::Ready { incarnation: incarnation(0, 1) }, NOW);
    assert_eq!(actions, [send(0, 1, 0), SupervisorAction::Stop { incarnation: incarnation(0, 1) }]);
}

#[test]
fn if_every_worker_has_retired_one_is_forked_for_an_unpinned_task() {
    let mut supervisor = ready(settings(1));
    submit(&mut supervisor, 0, None);
    supervisor.handle(WorkerEvent::Retire { worker_id: 0 }, NOW);
    assert_eq!(
        without_deaths(supervisor.handle(WorkerEvent::ZygoteEnded, NOW)),
        [SupervisorAction::StartZygote { fresh: false }]
    );
    let actions = supervisor.handle(WorkerEvent::ZygoteReady, NOW);
    assert_eq!(actions, [SupervisorAction::Fork { incarnation: incarnation(0, 1) }]);
}

#[test]
fn closing_stops_ready_workers_kills_booting_ones_and_ends_with_the_last() {
    let mut supervisor = booting(settings(2));
    supervisor.handle(WorkerEvent::Ready { incarnation: incarnation(0, 0) }, NOW);
    let actions = supervisor.handle(WorkerEvent::Close, NOW);
    assert_eq!(
        actions,
        [
            SupervisorAction::Stop { incarnation: incarnation(0, 0) },
            SupervisorAction::Kill { incarnation: incarnation(1, 0) }
        ]
    );
    assert_eq!(end(&mut supervisor, incarnation(1, 0), KILLED, NOW), []);
    let actions = end(&mut supervisor, incarnation(0, 0), ExitKind::Exited(0), NOW);
    assert_eq!(actions, [SupervisorAction::Closed]);
    assert_eq!(supervisor.handle(WorkerEvent::Close, NOW), []);
}

#[test]
fn closing_kills_after_the_grace_and_ends_even_if_that_does_not_help() {
    let mut supervisor = ready(settings(1));
    supervisor.handle(WorkerEvent::Close, NOW);
    assert_eq!(supervisor.next_deadline(), Some(NOW + GRACE));
    let actions = supervisor.handle(WorkerEvent::TimePassed, NOW + GRACE);
    assert_eq!(actions, [SupervisorAction::Kill { incarnation: incarnation(0, 0) }]);
    assert_eq!(supervisor.next_deadline(), Some(NOW + GRACE * 3));
    let actions = supervisor.handle(WorkerEvent::TimePassed, NOW + GRACE * 3);
    assert_eq!(actions, [SupervisorAction::Closed]);
    assert!(supervisor.is_closed());
}

#[test]
fn closing_waits_for_a_zygote_that_is_starting() {
    let mut supervisor = Healthy::new(settings(1));
    supervisor.start(Duration::ZERO);
    assert_eq!(supervisor.handle(WorkerEvent::Close, NOW), []);
    assert_eq!(supervisor.handle(WorkerEvent::ZygoteReady, NOW), [SupervisorAction::Closed]);
}

#[test]
fn a_failed_run_stops_its_workers_and_closes_on_close() {
    let mut supervisor = ready(SupervisorSettings { max_deaths: 0, ..settings(2) });
    let actions = without_deaths(end(&mut supervisor, incarnation(0, 0), KILLED, NOW));
    let stop = SupervisorAction::Stop { incarnation: incarnation(1, 0) };
    assert_eq!(actions, [SupervisorAction::Fail(RunFailure::TooManyDeaths), stop]);
    assert_eq!(end(&mut supervisor, incarnation(1, 0), ExitKind::Exited(0), NOW), []);
    assert_eq!(supervisor.next_deadline(), None);
    assert_eq!(supervisor.handle(WorkerEvent::Close, NOW), [SupervisorAction::Closed]);
}

#[test]
fn extreme_settings_are_accepted() {
    let endless = SupervisorSettings {
        worker_count: 0,
        depth: 0,
        within: Duration::MAX,
        refused_for: Duration::MAX,
        grace: Duration::MAX,
        ..settings(1)
    };
    let mut supervisor = Healthy::new(endless);
    supervisor.start(NOW);
    supervisor.handle(WorkerEvent::ZygoteReady, NOW);
    supervisor
        .handle(WorkerEvent::Refused { incarnation: incarnation(0, 0), transient: true }, NOW);
    supervisor.handle(WorkerEvent::TimePassed, Duration::from_secs(1));
    supervisor.handle(WorkerEvent::Ready { incarnation: incarnation(0, 1) }, NOW);
    assert_eq!(submit(&mut supervisor, 0, Some(5)), [send(0, 1, 0)]);
    supervisor.handle(WorkerEvent::Close, NOW);
    assert_eq!(supervisor.next_deadline(), Some(Duration::MAX));
}
