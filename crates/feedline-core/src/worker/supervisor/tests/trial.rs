//! Samples that kill workers, or seem to.

use super::*;

fn suspicious(worker_count: u32) -> SupervisorSettings {
    SupervisorSettings { suspect_after: Some(2), max_deaths: 2, ..settings(worker_count) }
}

fn trial(worker_id: WorkerId, generation: u32, task: TaskNumber, offset: u64) -> SupervisorAction {
    SupervisorAction::Send {
        incarnation: incarnation(worker_id, generation),
        task,
        trial: Some(offset),
    }
}

fn give_up(task: TaskNumber, at: Option<u64>) -> SupervisorAction {
    SupervisorAction::GiveUp { task, at, why: GiveUpReason::Kills }
}

fn survive(
    supervisor: &mut Healthy,
    incarnation: Incarnation,
    task: TaskNumber,
) -> Vec<SupervisorAction> {
    supervisor.handle(WorkerEvent::Survived { incarnation, task }, NOW)
}

/// A run whose process 0/2 has just been sent a task for trial at offset 5, while another task
/// waits for the worker.
fn on_trial(settings: SupervisorSettings) -> Healthy {
    let mut supervisor = ready(settings);
    submit(&mut supervisor, 0, Some(0));
    submit(&mut supervisor, 1, Some(0));
    for generation in 0..2 {
        let actions = without_deaths(die_at(&mut supervisor, incarnation(0, generation), Some(5)));
        assert_eq!(actions, [fork(0, generation + 1)]);
        if generation == 0 {
            is_ready(&mut supervisor, incarnation(0, 1));
        }
    }
    assert_eq!(is_ready(&mut supervisor, incarnation(0, 2)), [trial(0, 2, 0, 5)]);
    supervisor
}

#[test]
fn a_task_that_kills_at_one_sample_is_tried_first_and_alone_in_a_fresh_worker() {
    let mut supervisor = on_trial(suspicious(1));
    assert_eq!(submit(&mut supervisor, 2, None), []);
    assert_eq!(submit(&mut supervisor, 3, Some(0)), []);
}

#[test]
fn a_trial_stays_with_the_worker_that_died_even_if_the_task_is_unpinned() {
    let mut supervisor =
        ready(SupervisorSettings { suspect_after: Some(1), depth: 1, ..settings(2) });
    submit(&mut supervisor, 0, None);
    assert_eq!(without_deaths(die_at(&mut supervisor, incarnation(0, 0), Some(0))), [fork(0, 1)]);
    assert_eq!(is_ready(&mut supervisor, incarnation(0, 1)), [trial(0, 1, 0, 0)]);
}

#[test]
fn a_task_that_kills_in_its_trial_is_given_up_and_its_deaths_do_not_count() {
    let mut supervisor = on_trial(suspicious(1));
    let actions = without_deaths(die_at(&mut supervisor, incarnation(0, 2), None));
    assert_eq!(actions, [give_up(0, Some(5)), fork(0, 3)]);
    assert_eq!(is_ready(&mut supervisor, incarnation(0, 3)), [send(0, 3, 1)]);
    // Two deaths are allowed: if the earlier ones counted, the first of these would be one too
    // many.
    result(&mut supervisor, incarnation(0, 3), 1);
    assert_eq!(without_deaths(die_at(&mut supervisor, incarnation(0, 3), None)), [fork(0, 4)]);
    is_ready(&mut supervisor, incarnation(0, 4));
    assert_eq!(without_deaths(die_at(&mut supervisor, incarnation(0, 4), None)), [fork(0, 5)]);
    is_ready(&mut supervisor, incarnation(0, 5));
    let actions = without_deaths(die_at(&mut supervisor, incarnation(0, 5), None));
    assert_eq!(actions, [SupervisorAction::Fail(RunFailure::TooManyDeaths)]);
}

#[test]
fn deaths_of_a_task_that_is_not_given_up_count() {
    let mut supervisor = on_trial(suspicious(1));
    survive(&mut supervisor, incarnation(0, 2), 0);
    let actions = without_deaths(die_at(&mut supervisor, incarnation(0, 2), Some(6)));
    assert_eq!(actions, [SupervisorAction::Fail(RunFailure::TooManyDeaths)]);
}

#[test]
fn a_task_that_survives_its_trial_is_done_by_the_same_worker_and_the_sample_is_cleared() {
    let mut supervisor = on_trial(SupervisorSettings { max_deaths: 9, ..suspicious(1) });
    let actions = survive(&mut supervisor, incarnation(0, 2), 0);
    assert_eq!(actions, [send(0, 2, 0), send(0, 2, 1)]);
    assert_eq!(survive(&mut supervisor, incarnation(0, 2), 0), []);
    die_at(&mut supervisor, incarnation(0, 2), Some(5));
    assert_eq!(is_ready(&mut supervisor, incarnation(0, 3)), [send(0, 3, 0), send(0, 3, 1)]);
    die_at(&mut supervisor, incarnation(0, 3), Some(5));
    assert_eq!(is_ready(&mut supervisor, incarnation(0, 4)), [trial(0, 4, 0, 5)]);
}

#[test]
fn a_result_ends_a_trial() {
    let mut supervisor = on_trial(suspicious(1));
    let actions = result(&mut supervisor, incarnation(0, 2), 0);
    assert_eq!(actions, [SupervisorAction::Accept { task: 0 }, send(0, 2, 1)]);
}

#[test]
fn deaths_at_different_samples_are_counted_separately() {
    let mut supervisor = ready(SupervisorSettings { max_deaths: 9, ..suspicious(1) });
    submit(&mut supervisor, 0, Some(0));
    for (generation, at) in [(0, Some(1)), (1, Some(2)), (2, None), (3, None)] {
        die_at(&mut supervisor, incarnation(0, generation), at);
        let actions = is_ready(&mut supervisor, incarnation(0, generation + 1));
        assert_eq!(actions, [send(0, generation + 1, 0)]);
    }
    die_at(&mut supervisor, incarnation(0, 4), Some(2));
    assert_eq!(is_ready(&mut supervisor, incarnation(0, 5)), [trial(0, 5, 0, 2)]);
}

#[test]
fn a_task_that_kills_between_samples_is_given_up_after_one_death_more() {
    let mut supervisor = ready(SupervisorSettings { max_deaths: 9, ..suspicious(1) });
    submit(&mut supervisor, 0, Some(0));
    for generation in 0..2 {
        die_at(&mut supervisor, incarnation(0, generation), None);
        is_ready(&mut supervisor, incarnation(0, generation + 1));
    }
    let actions = without_deaths(die_at(&mut supervisor, incarnation(0, 2), None));
    assert_eq!(actions, [give_up(0, None), fork(0, 3)]);
}

#[test]
fn max_attempts_decide_before_a_trial_does() {
    let mut supervisor =
        ready(SupervisorSettings { attempts: Some(2), max_deaths: 9, ..suspicious(1) });
    submit(&mut supervisor, 0, Some(0));
    die_at(&mut supervisor, incarnation(0, 0), Some(3));
    is_ready(&mut supervisor, incarnation(0, 1));
    // At another sample, so neither sample is more to blame.
    assert_eq!(without_deaths(die_at(&mut supervisor, incarnation(0, 1), Some(4))), [fork(0, 2)]);
    is_ready(&mut supervisor, incarnation(0, 2));
    let actions = without_deaths(die_at(&mut supervisor, incarnation(0, 2), Some(4)));
    assert_eq!(actions, [give_up(0, Some(4)), fork(0, 3)]);
}

#[test]
fn a_trial_survives_its_zygote_whether_it_has_begun_or_not() {
    for worker_id in [Some(0), None] {
        let mut supervisor = ready(SupervisorSettings { suspect_after: Some(1), ..settings(1) });
        submit(&mut supervisor, 0, worker_id);
        die_at(&mut supervisor, incarnation(0, 0), Some(5));
        for generation in 2..4 {
            supervisor.handle(WorkerEvent::ZygoteEnded, NOW);
            let actions = supervisor.handle(WorkerEvent::ZygoteReady, NOW);
            assert_eq!(actions, [fork(0, generation)]);
            let actions = is_ready(&mut supervisor, incarnation(0, generation));
            assert_eq!(actions, [trial(0, generation, 0, 5)]);
        }
    }
}

#[test]
fn a_retired_worker_is_forked_for_a_trial_and_stops_after_it() {
    let mut supervisor = ready(SupervisorSettings { suspect_after: Some(1), ..settings(1) });
    submit(&mut supervisor, 0, None);
    supervisor.handle(WorkerEvent::Retire { worker_id: 0 }, NOW);
    assert_eq!(without_deaths(die_at(&mut supervisor, incarnation(0, 0), Some(0))), [fork(0, 1)]);
    assert_eq!(is_ready(&mut supervisor, incarnation(0, 1)), [trial(0, 1, 0, 0)]);
    assert_eq!(supervisor.handle(WorkerEvent::Retire { worker_id: 0 }, NOW), []);
    let actions = result(&mut supervisor, incarnation(0, 1), 0);
    assert_eq!(
        actions,
        [
            SupervisorAction::Accept { task: 0 },
            SupervisorAction::Stop { incarnation: incarnation(0, 1) }
        ]
    );
}

#[test]
fn a_trial_waits_while_forks_are_refused() {
    let mut supervisor = ready(SupervisorSettings { suspect_after: Some(1), ..settings(1) });
    submit(&mut supervisor, 0, None);
    die_at(&mut supervisor, incarnation(0, 0), Some(0));
    supervisor
        .handle(WorkerEvent::Refused { incarnation: incarnation(0, 1), transient: true }, NOW);
    supervisor.handle(WorkerEvent::Retire { worker_id: 0 }, NOW);
    let actions = supervisor.handle(WorkerEvent::TimePassed, NOW + FIRST_BACKOFF);
    assert_eq!(actions, [fork(0, 2)]);
    assert_eq!(is_ready(&mut supervisor, incarnation(0, 2)), [trial(0, 2, 0, 0)]);
}

#[test]
fn a_trial_that_hangs_is_retried_up_to_max_hangs() {
    let late = NOW + Duration::from_secs(100);
    let limits = SupervisorSettings {
        deadline: Deadline::After(GRACE),
        hangs: 2,
        max_deaths: 9,
        ..suspicious(1)
    };
    let mut supervisor = on_trial(limits);
    for generation in 2..4 {
        let incarnation = incarnation(0, generation);
        let seen = Observation {
            task: Some(0),
            offset: Some(5),
            since: NOW,
            work: WorkerActivity::Sample,
            asleep: false,
            stopped: false,
            is_dumping: false,
            has_progressed: false,
        };
        let seen = WorkerEvent::Observed { incarnation, seen };
        let late = late * generation;
        assert_eq!(supervisor.handle(seen, late), [SupervisorAction::Dump { incarnation }]);
        assert_eq!(supervisor.handle(seen, late + DUMP), [SupervisorAction::Kill { incarnation }]);
        let actions = without_deaths(end(&mut supervisor, incarnation, KILLED, late + DUMP));
        if generation == 2 {
            assert_eq!(actions, [fork(0, 3)]);
            assert_eq!(is_ready(&mut supervisor, super::incarnation(0, 3)), [trial(0, 3, 0, 5)]);
        } else {
            let why = GiveUpReason::Hangs;
            assert_eq!(
                actions,
                [SupervisorAction::GiveUp { task: 0, at: Some(5), why }, fork(0, 4)]
            );
        }
    }
}
