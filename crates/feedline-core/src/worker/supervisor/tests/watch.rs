//! Workers that make no progress.

use super::*;

const DEADLINE: Duration = Duration::from_secs(10);
const STALL: Duration = Duration::from_secs(4);
const FIRST: Incarnation = Incarnation { worker_id: 0, generation: 0 };

fn sample(task: TaskNumber, offset: u64, since: Duration) -> Observation {
    Observation {
        task: Some(task),
        offset: Some(offset),
        since,
        work: WorkerActivity::Sample,
        asleep: false,
        stopped: false,
        is_dumping: false,
        has_progressed: false,
    }
}

fn starting(since: Duration) -> Observation {
    Observation {
        task: None,
        offset: None,
        since,
        work: WorkerActivity::Starting,
        asleep: false,
        stopped: false,
        is_dumping: false,
        has_progressed: false,
    }
}

/// Looks at the workers that are due at the deadline, and finds this.
fn look(
    supervisor: &mut Healthy,
    incarnation: Incarnation,
    seen: Observation,
    now: Duration,
) -> Vec<SupervisorAction> {
    assert!(
        supervisor.workers_to_check(now).contains(&incarnation),
        "no worker is due for a look at {now:?}"
    );
    let mut actions = supervisor.handle(WorkerEvent::Observed { incarnation, seen }, now);
    assert!(!supervisor.workers_to_check(now).contains(&incarnation));
    actions.extend(supervisor.handle(WorkerEvent::TimePassed, now));
    actions
}

/// A run with one worker, which has just been sent task 0.
fn busy(settings: SupervisorSettings) -> Healthy {
    let mut supervisor = ready(settings);
    submit(&mut supervisor, 0, Some(0));
    supervisor
}

fn with_deadline() -> SupervisorSettings {
    SupervisorSettings { deadline: Deadline::After(DEADLINE), ..settings(1) }
}

fn with_stall() -> SupervisorSettings {
    SupervisorSettings { stall: Some(STALL), ..settings(1) }
}

#[test]
fn without_a_deadline_or_a_stall_no_worker_is_looked_at() {
    let mut supervisor = busy(settings(1));
    assert_eq!(supervisor.next_deadline(), None);
    let seen = WorkerEvent::Observed { incarnation: FIRST, seen: sample(0, 0, NOW) };
    assert_eq!(supervisor.handle(seen, Duration::from_secs(1_000_000)), []);
    assert_eq!(supervisor.handle(seen, Duration::from_secs(2_000_000)), []);
}

#[test]
fn a_worker_stopped_before_it_began_its_task_is_late_and_the_task_is_not_to_blame() {
    let mut supervisor = busy(with_deadline());
    let waiting = Observation { work: WorkerActivity::Waiting, ..starting(Duration::ZERO) };
    let late = NOW + DEADLINE;
    assert_eq!(
        look(&mut supervisor, FIRST, waiting, late),
        [SupervisorAction::Dump { incarnation: FIRST }]
    );
    let dumped = supervisor.next_deadline().unwrap();
    assert_eq!(
        look(&mut supervisor, FIRST, waiting, dumped),
        [SupervisorAction::Kill { incarnation: FIRST }]
    );
    let ended = WorkerEvent::Ended {
        incarnation: FIRST,
        exit: ExitKind::Killed(9),
        at: None,
        shortage: None,
    };
    let actions = supervisor.handle(ended, dumped);
    assert!(
        !actions.iter().any(|action| matches!(action, SupervisorAction::GiveUp { .. })),
        "{actions:?}"
    );
    let next = Incarnation { worker_id: 0, generation: 1 };
    let sent = supervisor.handle(WorkerEvent::Ready { incarnation: next }, dumped);
    assert_eq!(sent, [SupervisorAction::Send { incarnation: next, task: 0, trial: None }]);
}

#[test]
fn a_worker_is_looked_at_no_earlier_than_it_can_be_late() {
    let mut supervisor = ready(with_deadline());
    assert_eq!(supervisor.next_deadline(), None);
    submit(&mut supervisor, 0, Some(0));
    let first = NOW + DEADLINE;
    assert_eq!(supervisor.next_deadline(), Some(first));
    assert_eq!(supervisor.workers_to_check(NOW), []);
    let since = NOW + Duration::from_secs(7);
    assert_eq!(look(&mut supervisor, FIRST, sample(0, 3, since), first), []);
    assert_eq!(supervisor.next_deadline(), Some(since + DEADLINE));
    result(&mut supervisor, FIRST, 0);
    assert_eq!(supervisor.next_deadline(), None);
}

#[test]
fn a_worker_that_exceeds_the_deadline_is_dumped_then_killed_and_is_no_counted_death() {
    let mut supervisor = busy(SupervisorSettings { hangs: 2, max_deaths: 0, ..with_deadline() });
    submit(&mut supervisor, 1, Some(0));
    let late = NOW + DEADLINE;
    let hung = sample(0, 3, NOW);
    assert_eq!(
        look(&mut supervisor, FIRST, hung, late),
        [SupervisorAction::Dump { incarnation: FIRST }]
    );
    assert_eq!(supervisor.next_deadline(), Some(late + DUMP));
    let actions = look(&mut supervisor, FIRST, hung, late + DUMP);
    assert_eq!(actions, [SupervisorAction::Kill { incarnation: FIRST }]);
    assert_eq!(supervisor.next_deadline(), None);
    let actions = end(&mut supervisor, FIRST, KILLED, late + DUMP);
    let death = Death {
        incarnation: FIRST,
        exit: KILLED,
        at: late + DUMP,
        stage: WorkerStage::Busy,
        tasks: vec![0, 1],
        replaced: true,
        overdue: true,
    };
    assert_eq!(actions, [SupervisorAction::Died(death), fork(0, 1)]);
    assert_eq!(is_ready(&mut supervisor, incarnation(0, 1)), [send(0, 1, 0), send(0, 1, 1)]);
}

#[test]
fn a_sample_that_hangs_too_often_is_given_up_and_hangs_elsewhere_do_not_count() {
    let mut supervisor = busy(SupervisorSettings { hangs: 2, ..with_deadline() });
    let mut now = NOW;
    for (generation, offset) in [(0, 3), (1, 4), (2, 3)] {
        let incarnation = incarnation(0, generation);
        let hung = WorkerEvent::Observed { incarnation, seen: sample(0, offset, now) };
        now += DEADLINE;
        supervisor.handle(hung, now);
        now += DUMP;
        supervisor.handle(hung, now);
        let actions = without_deaths(end(&mut supervisor, incarnation, KILLED, now));
        if generation < 2 {
            assert_eq!(actions, [fork(0, generation + 1)]);
            is_ready(&mut supervisor, super::incarnation(0, generation + 1));
        } else {
            let given_up =
                SupervisorAction::GiveUp { task: 0, at: Some(3), why: GiveUpReason::Hangs };
            assert_eq!(actions, [given_up, fork(0, 3)]);
        }
    }
}

#[test]
fn a_worker_that_continues_after_the_dump_is_not_killed() {
    let late = NOW + DEADLINE;
    let then = late + DUMP;
    let moved = late + Duration::from_millis(1);
    // Another sample, the same once more, or waiting for memory.
    let blocked = Observation { work: WorkerActivity::Blocked, ..sample(0, 3, NOW) };
    for seen in [sample(0, 4, moved), sample(0, 3, moved), blocked] {
        let mut supervisor = busy(with_deadline());
        look(&mut supervisor, FIRST, sample(0, 3, NOW), late);
        assert_eq!(look(&mut supervisor, FIRST, seen, then), []);
        let next = if seen.work == WorkerActivity::Blocked { then } else { moved };
        assert_eq!(supervisor.next_deadline(), Some(next + DEADLINE));
        let slow = sample(0, 5, next);
        let actions = look(&mut supervisor, FIRST, slow, next + DEADLINE);
        assert_eq!(actions, [SupervisorAction::Dump { incarnation: FIRST }]);
    }
}

#[test]
fn a_sample_that_was_restarted_after_the_dump_gets_another_dump() {
    let deadline = DUMP / 2;
    let mut supervisor =
        busy(SupervisorSettings { deadline: Deadline::After(deadline), ..settings(1) });
    let late = NOW + deadline;
    let dump = [SupervisorAction::Dump { incarnation: FIRST }];
    assert_eq!(look(&mut supervisor, FIRST, sample(0, 3, NOW), late), dump);
    let again = sample(0, 3, late + Duration::from_millis(1));
    assert_eq!(look(&mut supervisor, FIRST, again, late + DUMP), dump);
}

#[test]
fn an_early_look_does_not_shorten_the_dump_time() {
    let mut supervisor = busy(with_deadline());
    let late = NOW + DEADLINE;
    let hung = sample(0, 3, NOW);
    look(&mut supervisor, FIRST, hung, late);
    let early = WorkerEvent::Observed { incarnation: FIRST, seen: hung };
    assert_eq!(supervisor.handle(early, late + DUMP / 2), []);
    assert_eq!(supervisor.next_deadline(), Some(late + DUMP));
}

#[test]
fn a_hang_counts_for_the_observed_task_and_not_for_the_first() {
    let mut supervisor = busy(with_deadline());
    submit(&mut supervisor, 1, Some(0));
    let late = NOW + DEADLINE;
    look(&mut supervisor, FIRST, sample(1, 3, NOW), late);
    look(&mut supervisor, FIRST, sample(1, 3, NOW), late + DUMP);
    let actions = without_deaths(end(&mut supervisor, FIRST, KILLED, late + DUMP));
    let given_up = SupervisorAction::GiveUp { task: 1, at: Some(3), why: GiveUpReason::Hangs };
    assert_eq!(actions, [given_up, fork(0, 1)]);
    assert_eq!(is_ready(&mut supervisor, incarnation(0, 1)), [send(0, 1, 0)]);
}

#[test]
fn a_worker_that_waits_for_memory_or_starts_late_is_never_late() {
    for work in [WorkerActivity::Blocked, WorkerActivity::Starting] {
        let mut supervisor = busy(SupervisorSettings { stall: Some(STALL), ..with_deadline() });
        let mut now = NOW;
        for _ in 0..5 {
            now = supervisor.next_deadline().unwrap();
            let seen = Observation { work, ..sample(0, 3, NOW) };
            assert_eq!(look(&mut supervisor, FIRST, seen, now), []);
        }
        assert_eq!(now, NOW + STALL * 5);
    }
}

#[test]
fn a_result_that_crosses_the_kill_counts_and_the_hang_does_not() {
    let mut supervisor = busy(with_deadline());
    submit(&mut supervisor, 1, Some(0));
    let late = NOW + DEADLINE;
    look(&mut supervisor, FIRST, sample(0, 3, NOW), late);
    look(&mut supervisor, FIRST, sample(0, 3, NOW), late + DUMP);
    assert_eq!(result(&mut supervisor, FIRST, 0), [SupervisorAction::Accept { task: 0 }]);
    let actions = without_deaths(end(&mut supervisor, FIRST, KILLED, late + DUMP));
    assert_eq!(actions, [fork(0, 1)]);
    assert_eq!(is_ready(&mut supervisor, incarnation(0, 1)), [send(0, 1, 1)]);
}

#[test]
fn a_missed_look_is_due_again_soon() {
    let mut supervisor = busy(with_deadline());
    let late = NOW + DEADLINE;
    supervisor.handle(WorkerEvent::TimePassed, late);
    assert_eq!(supervisor.next_deadline(), Some(late + DUMP));
}

#[test]
fn a_worker_that_has_not_written_its_stack_gets_more_time() {
    let mut supervisor = busy(with_deadline());
    let late = NOW + DEADLINE;
    let dumping = Observation { is_dumping: true, ..sample(0, 3, NOW) };
    assert_eq!(
        look(&mut supervisor, FIRST, dumping, late),
        [SupervisorAction::Dump { incarnation: FIRST }]
    );
    assert_eq!(look(&mut supervisor, FIRST, dumping, late + DUMP), []);
    assert_eq!(look(&mut supervisor, FIRST, dumping, late + DUMP * 3), []);
    let written = sample(0, 3, NOW);
    assert_eq!(
        look(&mut supervisor, FIRST, written, late + DUMP * 4),
        [SupervisorAction::Kill { incarnation: FIRST }]
    );
}

#[test]
fn a_worker_that_never_writes_its_stack_is_killed_anyway() {
    let mut supervisor = busy(with_deadline());
    let late = NOW + DEADLINE;
    let dumping = Observation { is_dumping: true, ..sample(0, 3, NOW) };
    assert_eq!(
        look(&mut supervisor, FIRST, dumping, late),
        [SupervisorAction::Dump { incarnation: FIRST }]
    );
    let end = late + DUMP * DUMP_EXTENSIONS;
    assert_eq!(
        look(&mut supervisor, FIRST, dumping, end),
        [SupervisorAction::Kill { incarnation: FIRST }]
    );
}

#[test]
fn a_stall_is_dumped_and_logged_once_and_never_kills() {
    let mut supervisor = busy(with_stall());
    let seen = sample(0, 3, NOW);
    let late = NOW + STALL;
    assert_eq!(
        look(&mut supervisor, FIRST, seen, late),
        [SupervisorAction::Dump { incarnation: FIRST }]
    );
    let actions = look(&mut supervisor, FIRST, seen, late + DUMP);
    assert_eq!(actions, [SupervisorAction::Stalled { incarnation: FIRST, seen }]);
    for _ in 0..5 {
        let now = supervisor.next_deadline().unwrap();
        assert_eq!(look(&mut supervisor, FIRST, seen, now), []);
    }
    let now = supervisor.next_deadline().unwrap();
    let seen = sample(0, 4, NOW);
    assert_eq!(
        look(&mut supervisor, FIRST, seen, now),
        [SupervisorAction::Dump { incarnation: FIRST }]
    );
    let actions = look(&mut supervisor, FIRST, seen, now + DUMP);
    assert_eq!(actions, [SupervisorAction::Stalled { incarnation: FIRST, seen }]);
}

#[test]
fn a_worker_that_is_stopped_while_it_waits_for_something_has_a_deadline() {
    let blocked = Observation { work: WorkerActivity::Blocked, ..sample(0, 0, NOW) };
    for stopped in [false, true] {
        let mut supervisor = busy(with_deadline());
        let seen = Observation { stopped, ..blocked };
        let late = NOW + DEADLINE;
        let dump =
            if stopped { vec![SupervisorAction::Dump { incarnation: FIRST }] } else { vec![] };
        assert_eq!(look(&mut supervisor, FIRST, seen, late), dump);
        if stopped {
            let killed = look(&mut supervisor, FIRST, seen, late + DUMP);
            assert_eq!(killed, [SupervisorAction::Kill { incarnation: FIRST }]);
        }
    }
}

#[test]
fn a_worker_that_starts_too_slowly_is_killed_and_a_stopped_one_at_its_deadline() {
    for (stopped, limit) in [(false, START), (true, DEADLINE)] {
        let mut supervisor =
            booting(SupervisorSettings { deadline: Deadline::After(DEADLINE), ..settings(1) });
        let seen = Observation { stopped, ..starting(NOW) };
        let early = NOW + limit - Duration::from_millis(1);
        assert_eq!(
            supervisor.handle(WorkerEvent::Observed { incarnation: FIRST, seen }, early),
            []
        );
        let late = NOW + limit;
        assert_eq!(
            look(&mut supervisor, FIRST, seen, late),
            [SupervisorAction::Dump { incarnation: FIRST }]
        );
        let killed = look(&mut supervisor, FIRST, seen, late + DUMP);
        assert_eq!(killed, [SupervisorAction::Kill { incarnation: FIRST }]);
        let ended =
            WorkerEvent::Ended { incarnation: FIRST, exit: KILLED, at: None, shortage: None };
        let actions = supervisor.handle(ended, late + DUMP);
        assert_eq!(actions[1], SupervisorAction::Fork { incarnation: incarnation(0, 1) });
    }
}

#[test]
fn a_worker_that_starts_stalls_and_may_take_longer_than_a_sample() {
    let mut supervisor = booting(SupervisorSettings { stall: Some(STALL), ..with_deadline() });
    let seen = starting(NOW);
    let late = NOW + STALL;
    assert_eq!(
        look(&mut supervisor, FIRST, seen, late),
        [SupervisorAction::Dump { incarnation: FIRST }]
    );
    let actions = look(&mut supervisor, FIRST, seen, late + DUMP);
    assert_eq!(actions, [SupervisorAction::Stalled { incarnation: FIRST, seen }]);
    let later = WorkerEvent::Observed { incarnation: FIRST, seen };
    assert_eq!(supervisor.handle(later, START), []);
    let mut supervisor =
        booting(SupervisorSettings { deadline: Deadline::Never, ..with_deadline() });
    assert_eq!(supervisor.next_deadline(), None);
    assert_eq!(supervisor.handle(later, START * 10), []);
}

#[test]
fn a_sample_stalls_before_it_passes_the_deadline_and_not_after() {
    let mut supervisor = busy(SupervisorSettings { stall: Some(STALL), ..with_deadline() });
    let seen = sample(0, 3, NOW);
    look(&mut supervisor, FIRST, seen, NOW + STALL);
    let actions = look(&mut supervisor, FIRST, seen, NOW + STALL + DUMP);
    assert_eq!(actions, [SupervisorAction::Stalled { incarnation: FIRST, seen }]);
    let late = NOW + DEADLINE;
    assert_eq!(supervisor.next_deadline(), Some(late));
    assert_eq!(
        look(&mut supervisor, FIRST, seen, late),
        [SupervisorAction::Dump { incarnation: FIRST }]
    );
    let actions = look(&mut supervisor, FIRST, seen, late + DUMP);
    assert_eq!(actions, [SupervisorAction::Kill { incarnation: FIRST }]);
    let mut supervisor = busy(SupervisorSettings { stall: Some(DEADLINE), ..with_deadline() });
    look(&mut supervisor, FIRST, seen, late);
    let actions = look(&mut supervisor, FIRST, seen, late + DUMP);
    assert_eq!(actions, [SupervisorAction::Kill { incarnation: FIRST }]);
}

#[test]
fn a_retired_worker_has_a_deadline_too() {
    let mut supervisor = busy(with_deadline());
    supervisor.handle(WorkerEvent::Retire { worker_id: 0 }, NOW);
    let late = NOW + DEADLINE;
    look(&mut supervisor, FIRST, sample(0, 3, NOW), late);
    let actions = look(&mut supervisor, FIRST, sample(0, 3, NOW), late + DUMP);
    assert_eq!(actions, [SupervisorAction::Kill { incarnation: FIRST }]);
}

fn asleep(task: TaskNumber, offset: u64, since: Duration) -> Observation {
    Observation { asleep: true, ..sample(task, offset, since) }
}

fn may_be_fresh() -> SupervisorSettings {
    SupervisorSettings {
        may_be_fresh: true,
        max_deaths: 0,
        deadline: Deadline::After(DEADLINE),
        ..settings(2)
    }
}

/// A run with two workers, of which the first is found asleep at its first sample.
fn restarted_fresh(settings: SupervisorSettings) -> Healthy {
    let mut supervisor = ready(settings);
    submit(&mut supervisor, 0, Some(0));
    submit(&mut supervisor, 1, Some(1));
    let seen = asleep(0, 0, NOW);
    look(&mut supervisor, FIRST, seen, NOW + DEADLINE);
    let actions = look(&mut supervisor, FIRST, seen, NOW + DEADLINE + DUMP);
    assert_eq!(
        actions,
        [
            SupervisorAction::RestartedFresh { incarnation: FIRST, seen },
            SupervisorAction::EndZygote
        ]
    );
    supervisor
}

#[test]
fn a_worker_asleep_before_its_first_result_restarts_all_from_a_fresh_interpreter() {
    let mut supervisor = restarted_fresh(may_be_fresh());
    let now = NOW + DEADLINE + DUMP;
    assert_eq!(end(&mut supervisor, incarnation(1, 0), KILLED, now), []);
    let actions = supervisor.handle(WorkerEvent::ZygoteEnded, now);
    assert_eq!(actions, [SupervisorAction::StartZygote { fresh: true }]);
    assert_eq!(supervisor.deaths(), []);
    assert_eq!(supervisor.handle(WorkerEvent::ZygoteReady, now), [fork(0, 1), fork(1, 1)]);
    assert_eq!(is_ready(&mut supervisor, incarnation(0, 1)), [send(0, 1, 0)]);
    assert_eq!(is_ready(&mut supervisor, incarnation(1, 1)), [send(1, 1, 1)]);
}

#[test]
fn a_trial_survives_a_fresh_restart_whichever_ends_first() {
    for ends_first in [true, false] {
        let settings =
            SupervisorSettings { suspect_after: Some(1), max_deaths: 1, ..may_be_fresh() };
        let mut supervisor = ready(settings);
        submit(&mut supervisor, 0, Some(0));
        submit(&mut supervisor, 1, None);
        die_at(&mut supervisor, incarnation(1, 0), Some(7));
        is_ready(&mut supervisor, incarnation(1, 1));
        let late = NOW + DEADLINE;
        look(&mut supervisor, FIRST, asleep(0, 0, NOW), late);
        look(&mut supervisor, FIRST, asleep(0, 0, NOW), late + DUMP);
        if ends_first {
            assert_eq!(end(&mut supervisor, incarnation(1, 1), KILLED, late + DUMP), []);
        }
        let actions = supervisor.handle(WorkerEvent::ZygoteEnded, late + DUMP);
        assert_eq!(actions, [SupervisorAction::StartZygote { fresh: true }]);
        supervisor.handle(WorkerEvent::ZygoteReady, late + DUMP);
        let actions = is_ready(&mut supervisor, incarnation(1, 2));
        assert_eq!(
            actions,
            [SupervisorAction::Send { incarnation: incarnation(1, 2), task: 1, trial: Some(7) }]
        );
    }
}

#[test]
fn a_fresh_restart_does_not_wait_for_a_zygote_that_does_not_end() {
    let mut supervisor = restarted_fresh(may_be_fresh());
    let until = NOW + DEADLINE + DUMP + GRACE;
    supervisor.handle(WorkerEvent::TimePassed, until - Duration::from_nanos(1));
    assert_eq!(supervisor.next_deadline(), Some(until));
    let actions = supervisor.handle(WorkerEvent::TimePassed, until);
    assert_eq!(actions, [SupervisorAction::StartZygote { fresh: true }]);
    assert_eq!(supervisor.incarnations(0).count() + supervisor.incarnations(1).count(), 0);
}

#[test]
fn a_fresh_restart_happens_once_and_all_later_zygotes_are_fresh() {
    let mut supervisor = restarted_fresh(SupervisorSettings { max_deaths: 1, ..may_be_fresh() });
    supervisor.handle(WorkerEvent::ZygoteEnded, NOW);
    supervisor.handle(WorkerEvent::ZygoteReady, NOW);
    is_ready(&mut supervisor, incarnation(0, 1));
    let late = Duration::from_secs(100);
    let seen = WorkerEvent::Observed { incarnation: incarnation(0, 1), seen: asleep(0, 0, NOW) };
    supervisor.handle(seen, late);
    assert_eq!(
        supervisor.handle(seen, late + DUMP),
        [SupervisorAction::Kill { incarnation: incarnation(0, 1) }]
    );
    let actions = without_deaths(supervisor.handle(WorkerEvent::ZygoteEnded, late + DUMP));
    let fresh = SupervisorAction::StartZygote { fresh: true };
    let given_up = SupervisorAction::GiveUp { task: 0, at: Some(0), why: GiveUpReason::Hangs };
    assert_eq!(actions, [given_up, fresh]);
}

#[test]
fn a_worker_that_has_answered_or_is_awake_or_is_fresh_already_is_killed_instead() {
    let late = NOW + DEADLINE;
    let kill = [SupervisorAction::Kill { incarnation: FIRST }];
    let mut worked = ready(may_be_fresh());
    submit(&mut worked, 1, Some(0));
    result(&mut worked, FIRST, 1);
    submit(&mut worked, 2, Some(0));
    look(&mut worked, FIRST, asleep(2, 0, NOW), late);
    assert_eq!(look(&mut worked, FIRST, asleep(2, 0, NOW), late + DUMP), kill);
    let mut awake = busy(may_be_fresh());
    look(&mut awake, FIRST, sample(0, 0, NOW), late);
    assert_eq!(look(&mut awake, FIRST, sample(0, 0, NOW), late + DUMP), kill);
    let mut fresh = busy(SupervisorSettings { may_be_fresh: false, ..may_be_fresh() });
    look(&mut fresh, FIRST, asleep(0, 0, NOW), late);
    assert_eq!(look(&mut fresh, FIRST, asleep(0, 0, NOW), late + DUMP), kill);
}

#[test]
fn a_worker_asleep_while_it_starts_restarts_all_from_a_fresh_interpreter() {
    let mut supervisor = booting(SupervisorSettings { may_be_fresh: true, ..with_stall() });
    let seen = Observation { asleep: true, ..starting(NOW) };
    look(&mut supervisor, FIRST, seen, NOW + STALL);
    let actions = look(&mut supervisor, FIRST, seen, NOW + STALL + DUMP);
    assert_eq!(
        actions,
        [
            SupervisorAction::RestartedFresh { incarnation: FIRST, seen },
            SupervisorAction::EndZygote
        ]
    );
    let refused = WorkerEvent::Refused { incarnation: FIRST, transient: false };
    assert_eq!(supervisor.handle(refused, NOW), []);
}

#[test]
fn closing_ends_during_a_fresh_restart() {
    let mut supervisor = restarted_fresh(may_be_fresh());
    supervisor.handle(WorkerEvent::Close, NOW);
    assert_eq!(supervisor.handle(WorkerEvent::ZygoteEnded, NOW), [SupervisorAction::Closed]);
}
