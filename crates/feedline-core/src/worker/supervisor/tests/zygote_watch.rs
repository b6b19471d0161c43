//! A zygote that does not answer.

use super::*;

const HUNG_UP: WorkerEvent =
    WorkerEvent::HungUp { incarnation: Incarnation { worker_id: 0, generation: 0 } };
/// The time from the look at which a zygote seems to hang to the look that decides.
const SECOND_LOOK: Duration = Duration::from_secs(10);
const BORN_AGAIN: [SupervisorAction; 1] = [SupervisorAction::StartZygote { fresh: false }];

/// A run with one ready worker whose socket was closed at `NOW`.
fn asking() -> Supervisor {
    let mut supervisor = ready(settings(1)).0;
    supervisor.handle(WorkerEvent::Submitted { task: 0, worker_id: None }, NOW);
    // The first ping followed the fork.
    assert_eq!(supervisor.handle(HUNG_UP, NOW), [SupervisorAction::PingZygote { number: 2 }]);
    supervisor
}

/// Looks at the zygote when it is due, and finds this.
fn look(supervisor: &mut Supervisor, ran: bool) -> Vec<SupervisorAction> {
    let at = supervisor.next_deadline().unwrap();
    assert!(supervisor.must_check_zygote(at));
    let actions = supervisor.handle(WorkerEvent::ZygoteSeen { ran }, at);
    assert_eq!(supervisor.handle(WorkerEvent::TimePassed, at), []);
    actions
}

fn hang(supervisor: &mut Supervisor) -> Vec<SupervisorAction> {
    assert_eq!(look(supervisor, false), []);
    look(supervisor, false)
}

#[test]
fn a_zygote_that_hangs_is_killed_and_its_tasks_go_to_the_workers_of_the_next() {
    let mut supervisor = asking();
    assert_eq!(supervisor.next_deadline(), Some(NOW + PATIENCE));
    assert_eq!(look(&mut supervisor, false), []);
    assert_eq!(supervisor.next_deadline(), Some(NOW + PATIENCE + SECOND_LOOK));
    assert_eq!(
        look(&mut supervisor, false),
        [SupervisorAction::ZygoteHung, SupervisorAction::EndZygote]
    );
    let now = NOW + PATIENCE + SECOND_LOOK;
    assert_eq!(supervisor.handle(WorkerEvent::ZygoteEnded, now), BORN_AGAIN);
    let forked = supervisor.handle(WorkerEvent::ZygoteReady, now);
    assert_eq!(forked[0], SupervisorAction::Fork { incarnation: incarnation(0, 1) });
    let fed = supervisor.handle(WorkerEvent::Ready { incarnation: incarnation(0, 1) }, now);
    assert_eq!(fed, [send(0, 1, 0)]);
    assert_eq!(supervisor.deaths(), []);
}

#[test]
fn a_zygote_that_answers_is_not_looked_at() {
    let mut supervisor = asking();
    let early = NOW + PATIENCE / 2;
    let another = WorkerEvent::ZygoteAnswered { ping: None };
    assert_eq!(supervisor.handle(another, early), []);
    assert_eq!(supervisor.next_deadline(), Some(early + PATIENCE));
    supervisor.handle(WorkerEvent::ZygoteAnswered { ping: Some(2) }, early);
    assert_eq!(supervisor.next_deadline(), None);
}

#[test]
fn an_answer_to_an_older_ping_only_postpones_the_look() {
    let mut supervisor = asking();
    assert_eq!(supervisor.handle(HUNG_UP, NOW), [SupervisorAction::PingZygote { number: 3 }]);
    supervisor.handle(WorkerEvent::ZygoteAnswered { ping: Some(2) }, NOW);
    assert_eq!(supervisor.next_deadline(), Some(NOW + PATIENCE));
    supervisor.handle(WorkerEvent::ZygoteAnswered { ping: Some(3) }, NOW);
    assert_eq!(supervisor.next_deadline(), None);
}

#[test]
fn a_zygote_that_uses_the_processor_is_logged_once_and_killed_after_ten_extensions() {
    let mut supervisor = asking();
    assert_eq!(look(&mut supervisor, true), [SupervisorAction::ZygoteSlow]);
    for _ in 1..10 {
        assert_eq!(look(&mut supervisor, true), []);
    }
    assert_eq!(
        look(&mut supervisor, true),
        [SupervisorAction::ZygoteHung, SupervisorAction::EndZygote]
    );
}

#[test]
fn a_zygote_that_runs_again_after_the_first_look_is_not_killed() {
    let mut supervisor = asking();
    assert_eq!(look(&mut supervisor, false), []);
    assert_eq!(look(&mut supervisor, true), [SupervisorAction::ZygoteSlow]);
    assert_eq!(hang(&mut supervisor), [SupervisorAction::ZygoteHung, SupervisorAction::EndZygote]);
}

#[test]
fn three_zygotes_that_hang_without_a_result_in_between_end_the_run() {
    let mut supervisor = asking();
    for generation in 1..3 {
        assert_eq!(
            hang(&mut supervisor),
            [SupervisorAction::ZygoteHung, SupervisorAction::EndZygote]
        );
        supervisor.handle(WorkerEvent::ZygoteEnded, Duration::ZERO);
        let forked = supervisor.handle(WorkerEvent::ZygoteReady, Duration::ZERO);
        assert_eq!(forked[0], SupervisorAction::Fork { incarnation: incarnation(0, generation) });
    }
    let failed = SupervisorAction::Fail(RunFailure::ZygoteHangs);
    assert_eq!(
        hang(&mut supervisor)[..3],
        [SupervisorAction::ZygoteHung, SupervisorAction::EndZygote, failed]
    );
}

#[test]
fn a_result_resets_the_count_of_hung_zygotes() {
    let mut supervisor = asking();
    for generation in 1..6 {
        assert_eq!(
            hang(&mut supervisor),
            [SupervisorAction::ZygoteHung, SupervisorAction::EndZygote]
        );
        supervisor.handle(WorkerEvent::ZygoteEnded, Duration::ZERO);
        supervisor.handle(WorkerEvent::ZygoteReady, Duration::ZERO);
        let incarnation = incarnation(0, generation);
        supervisor.handle(WorkerEvent::Ready { incarnation }, Duration::ZERO);
        let task = u64::from(generation) - 1;
        let accepted =
            supervisor.handle(WorkerEvent::TaskDone { incarnation, task }, Duration::ZERO);
        assert_eq!(accepted[0], SupervisorAction::Accept { task });
        let next = WorkerEvent::Submitted { task: task + 1, worker_id: None };
        supervisor.handle(next, Duration::ZERO);
    }
}

#[test]
fn a_fork_that_does_not_become_ready_is_killed_and_a_third_one_ends_the_run() {
    let mut supervisor = Supervisor::new(SupervisorSettings { may_be_fresh: true, ..settings(1) });
    supervisor.start(Duration::ZERO);
    supervisor.handle(WorkerEvent::ZygoteStarted, NOW);
    assert_eq!(supervisor.next_deadline(), Some(NOW + PATIENCE));
    for _ in 0..2 {
        assert_eq!(
            hang(&mut supervisor),
            [SupervisorAction::ZygoteHung, SupervisorAction::EndZygote]
        );
        assert_eq!(supervisor.handle(WorkerEvent::ZygoteEnded, Duration::ZERO), BORN_AGAIN);
        supervisor.handle(WorkerEvent::ZygoteStarted, Duration::ZERO);
    }
    let failed = SupervisorAction::Fail(RunFailure::ZygoteHangs);
    assert_eq!(
        hang(&mut supervisor),
        [SupervisorAction::ZygoteHung, SupervisorAction::EndZygote, failed]
    );
}

#[test]
fn a_fork_that_never_becomes_ready_is_killed_although_it_uses_the_processor() {
    let mut supervisor = Supervisor::new(SupervisorSettings { may_be_fresh: true, ..settings(1) });
    supervisor.start(Duration::ZERO);
    supervisor.handle(WorkerEvent::ZygoteStarted, NOW);
    assert_eq!(look(&mut supervisor, true), [SupervisorAction::ZygoteSlow]);
    for _ in 1..10 {
        assert_eq!(look(&mut supervisor, true), []);
    }
    assert_eq!(
        look(&mut supervisor, true),
        [SupervisorAction::ZygoteHung, SupervisorAction::EndZygote]
    );
}

#[test]
fn a_fresh_interpreter_may_load_for_as_long_as_it_uses_the_processor() {
    let mut supervisor = Supervisor::new(settings(1));
    supervisor.start(Duration::ZERO);
    supervisor.handle(WorkerEvent::ZygoteStarted, NOW);
    assert_eq!(supervisor.next_deadline(), Some(NOW + START));
    assert_eq!(look(&mut supervisor, true), [SupervisorAction::ZygoteSlow]);
    for _ in 0..100 {
        assert_eq!(look(&mut supervisor, true), []);
    }
    let late = Duration::from_secs(100_000);
    assert_eq!(
        supervisor.handle(WorkerEvent::ZygoteReady, late)[0],
        SupervisorAction::Fork { incarnation: incarnation(0, 0) }
    );
}

#[test]
fn a_missed_look_is_due_again_soon() {
    let mut supervisor = asking();
    let at = NOW + PATIENCE;
    assert_eq!(supervisor.handle(WorkerEvent::TimePassed, at), []);
    assert_eq!(supervisor.next_deadline(), Some(at + DUMP));
}

#[test]
fn closed_descriptors_end_the_run() {
    let mut supervisor = asking();
    let actions = supervisor.handle(WorkerEvent::DescriptorsClosed, NOW);
    assert_eq!(actions[0], SupervisorAction::Fail(RunFailure::DescriptorsClosed));
    assert_eq!(supervisor.handle(WorkerEvent::DescriptorsClosed, NOW), []);
}
