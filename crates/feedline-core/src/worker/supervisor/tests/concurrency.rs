//! Fewer workers have tasks at once than there are.

use super::*;

fn limit(supervisor: &mut Healthy, at_once: u32, ends_others: bool) -> Vec<SupervisorAction> {
    supervisor.handle(WorkerEvent::LimitWorkers { at_once, ends_others }, NOW)
}

fn done(supervisor: &mut Healthy, worker_id: WorkerId, task: TaskNumber) -> Vec<SupervisorAction> {
    let incarnation = incarnation(worker_id, 0);
    supervisor.handle(WorkerEvent::TaskDone { incarnation, task }, NOW)
}

fn stop(worker_id: WorkerId) -> SupervisorAction {
    SupervisorAction::Stop { incarnation: incarnation(worker_id, 0) }
}

/// Two of four ready workers may have tasks, and each of the four has two.
fn two_of_four() -> Healthy {
    let mut supervisor = ready(settings(4));
    assert_eq!(limit(&mut supervisor, 2, false), []);
    let sent: Vec<_> =
        (0..8).flat_map(|task| submit(&mut supervisor, task, Some(task as WorkerId % 4))).collect();
    assert_eq!(sent, [send(0, 0, 0), send(1, 0, 1)]);
    supervisor
}

#[test]
fn the_turn_goes_to_the_oldest_task_and_no_process_ends() {
    let mut supervisor = two_of_four();
    let accept = |task| SupervisorAction::Accept { task };
    assert_eq!(done(&mut supervisor, 1, 1), [accept(1), send(2, 0, 2)]);
    assert_eq!(done(&mut supervisor, 2, 2), [accept(2), send(3, 0, 3)]);
    // Worker 0 still has its first task, so that its second waits; worker 1 is next.
    assert_eq!(done(&mut supervisor, 3, 3), [accept(3), send(1, 0, 5)]);
    assert_eq!(done(&mut supervisor, 0, 0), [accept(0), send(0, 0, 4)]);
}

#[test]
fn a_higher_limit_sends_what_waits() {
    let mut supervisor = two_of_four();
    assert_eq!(limit(&mut supervisor, 3, false), [send(2, 0, 2)]);
    let rest = [send(0, 0, 4), send(1, 0, 5), send(2, 0, 6), send(3, 0, 3), send(3, 0, 7)];
    assert_eq!(limit(&mut supervisor, 4, false), rest);
}

#[test]
fn a_lower_limit_waits_until_enough_tasks_are_done() {
    let mut supervisor = two_of_four();
    assert_eq!(limit(&mut supervisor, 0, false), []);
    assert_eq!(done(&mut supervisor, 0, 0), [SupervisorAction::Accept { task: 0 }]);
    let next = [SupervisorAction::Accept { task: 1 }, send(2, 0, 2)];
    assert_eq!(done(&mut supervisor, 1, 1), next);
}

#[test]
fn a_worker_that_dies_passes_its_turn_and_gets_its_task_again() {
    let mut supervisor = two_of_four();
    let actions = end(&mut supervisor, incarnation(0, 0), KILLED, NOW);
    assert_eq!(actions[1], SupervisorAction::Fork { incarnation: incarnation(0, 1) });
    assert_eq!(actions[2..], [send(2, 0, 2)]);
    supervisor.handle(WorkerEvent::Ready { incarnation: incarnation(0, 1) }, NOW);
    assert_eq!(done(&mut supervisor, 1, 1)[1..], [send(0, 1, 0)]);
}

#[test]
fn if_memory_is_short_processes_end_as_soon_as_they_have_no_task() {
    let mut supervisor = two_of_four();
    let reduced =
        |most| SupervisorAction::CapacityChanged { most, shortage: Some(Shortage::Memory) };
    // Those whose next task is needed last end first.
    assert_eq!(limit(&mut supervisor, 1, true), [stop(3), stop(2), reduced(1)]);
    let first = done(&mut supervisor, 0, 0);
    assert_eq!(first, [SupervisorAction::Accept { task: 0 }, stop(0)]);
    // The last one goes on with its own.
    let second = done(&mut supervisor, 1, 1);
    assert_eq!(second, [SupervisorAction::Accept { task: 1 }, send(1, 0, 5)]);
}

#[test]
fn a_retired_worker_stops_after_the_tasks_that_waited_for_their_turn() {
    let mut supervisor = two_of_four();
    assert_eq!(supervisor.handle(WorkerEvent::Retire { worker_id: 2 }, NOW), []);
    assert_eq!(done(&mut supervisor, 0, 0)[1..], [send(2, 0, 2)]);
    assert_eq!(done(&mut supervisor, 1, 1)[1..], [send(3, 0, 3)]);
    assert_eq!(done(&mut supervisor, 3, 3)[1..], [send(0, 0, 4)]);
    assert_eq!(done(&mut supervisor, 0, 4)[1..], [send(1, 0, 5)]);
    assert_eq!(done(&mut supervisor, 2, 2)[1..], [send(2, 0, 6), stop(2)]);
}
