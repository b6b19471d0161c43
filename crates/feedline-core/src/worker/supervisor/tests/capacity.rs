//! Fewer processes than workers, because the machine is short of something.

use super::*;

const LATER: Duration = Duration::from_secs(2);
const REFUSED: WorkerEvent = WorkerEvent::Refused {
    incarnation: Incarnation { worker_id: 1, generation: 0 },
    transient: true,
};

fn reduced(most: u32, shortage: Shortage) -> SupervisorAction {
    SupervisorAction::CapacityChanged { most, shortage: Some(shortage) }
}

/// Two workers, of which the second is refused a process.
fn one_of_two() -> Healthy {
    let mut supervisor = booting(settings(2));
    assert_eq!(supervisor.handle(REFUSED, NOW), []);
    let is_ready = WorkerEvent::Ready { incarnation: incarnation(0, 0) };
    assert_eq!(supervisor.handle(is_ready, NOW), [reduced(1, Shortage::Processes)]);
    supervisor
}

fn ended_short(
    supervisor: &mut Healthy,
    incarnation: Incarnation,
    exit: ExitKind,
    shortage: Shortage,
) -> Vec<SupervisorAction> {
    let shortage = Some(shortage);
    supervisor.handle(WorkerEvent::Ended { incarnation, exit, at: Some(0), shortage }, NOW)
}

#[test]
fn a_worker_without_a_process_gets_the_one_of_an_idle_worker() {
    let mut supervisor = one_of_two();

    let actions = submit(&mut supervisor, 0, Some(1));
    assert_eq!(actions, [SupervisorAction::Stop { incarnation: incarnation(0, 0) }]);

    let actions = end(&mut supervisor, incarnation(0, 0), ExitKind::Exited(0), NOW);
    assert_eq!(actions, [SupervisorAction::Fork { incarnation: incarnation(1, 1) }]);
    let is_ready = WorkerEvent::Ready { incarnation: incarnation(1, 1) };
    assert_eq!(supervisor.handle(is_ready, NOW), [send(1, 1, 0)]);
}

#[test]
fn a_busy_worker_finishes_its_tasks_before_another_one_gets_its_turn() {
    let mut supervisor = one_of_two();

    assert_eq!(submit(&mut supervisor, 0, Some(0)), [send(0, 0, 0)]);
    assert_eq!(submit(&mut supervisor, 1, Some(1)), []);
    let actions = result(&mut supervisor, incarnation(0, 0), 0);
    let stop = SupervisorAction::Stop { incarnation: incarnation(0, 0) };
    assert_eq!(actions, [SupervisorAction::Accept { task: 0 }, stop]);
}

#[test]
fn one_more_process_is_tried_when_there_is_room() {
    let mut supervisor = one_of_two();

    assert_eq!(supervisor.must_check_room(NOW), None);
    assert_eq!(supervisor.must_check_room(LATER), Some(Shortage::Processes));
    assert_eq!(supervisor.handle(WorkerEvent::RoomSeen { is_enough: false }, LATER), []);
    let later = 2 * LATER;
    let actions = supervisor.handle(WorkerEvent::RoomSeen { is_enough: true }, later);
    assert_eq!(actions, [SupervisorAction::Fork { incarnation: incarnation(1, 1) }]);
    let is_ready = WorkerEvent::Ready { incarnation: incarnation(1, 1) };
    let increased = SupervisorAction::CapacityChanged { most: 2, shortage: None };
    assert_eq!(supervisor.handle(is_ready, later), [increased]);
}

#[test]
fn of_workers_killed_together_for_lack_of_memory_only_the_last_one_counts() {
    let mut supervisor = ready(SupervisorSettings { max_deaths: 1, ..settings(4) });
    for worker_id in 0..4 {
        submit(&mut supervisor, u64::from(worker_id), Some(worker_id));
    }
    for worker_id in 0..4 {
        let actions =
            ended_short(&mut supervisor, incarnation(worker_id, 0), KILLED, Shortage::Memory);
        let failed = actions.iter().any(|action| matches!(action, SupervisorAction::Fail(_)));
        assert!(!failed, "{actions:?}");
        // The last one is alone, and gets another chance alone.
        let fork = SupervisorAction::Fork { incarnation: incarnation(0, 1) };
        assert_eq!(actions.contains(&fork), worker_id == 3, "{actions:?}");
    }
}

#[test]
fn a_worker_that_runs_alone_and_is_killed_for_lack_of_memory_counts() {
    let mut supervisor = ready(SupervisorSettings { max_deaths: 0, ..settings(1) });
    submit(&mut supervisor, 0, Some(0));

    let actions = ended_short(&mut supervisor, incarnation(0, 0), KILLED, Shortage::Memory);

    assert_eq!(actions.last(), Some(&SupervisorAction::Fail(RunFailure::TooManyDeaths)));
}

#[test]
fn a_worker_that_leaves_after_it_has_worked_does_not_count_and_one_that_has_not_does() {
    for has_worked in [false, true] {
        let mut supervisor = ready(SupervisorSettings { max_deaths: 0, ..settings(1) });
        if has_worked {
            submit(&mut supervisor, 0, Some(0));
            result(&mut supervisor, incarnation(0, 0), 0);
        }
        submit(&mut supervisor, 1, Some(0));

        let exit = ExitKind::Exited(75);
        let actions = ended_short(&mut supervisor, incarnation(0, 0), exit, Shortage::Descriptors);

        let failed = SupervisorAction::Fail(RunFailure::TooManyDeaths);
        assert_eq!(actions.contains(&failed), !has_worked, "{actions:?}");
    }
}

#[test]
fn a_worker_that_leaks_ends_before_its_successor_starts_if_there_is_no_room_for_both() {
    let mut supervisor = ready(settings(1));
    let renew = WorkerEvent::Renew { incarnation: incarnation(0, 0) };
    let fork = SupervisorAction::Fork { incarnation: incarnation(0, 1) };
    assert_eq!(supervisor.handle(renew, NOW), [fork]);

    let refused = WorkerEvent::Refused { incarnation: incarnation(0, 1), transient: true };
    let stop = SupervisorAction::Stop { incarnation: incarnation(0, 0) };
    assert_eq!(supervisor.handle(refused, NOW), [stop]);
    let actions = end(&mut supervisor, incarnation(0, 0), ExitKind::Exited(0), NOW);
    let renewed = SupervisorAction::Renewed { incarnation: incarnation(0, 0) };
    let fork = SupervisorAction::Fork { incarnation: incarnation(0, 2) };
    assert_eq!(actions, [renewed, fork]);
}
