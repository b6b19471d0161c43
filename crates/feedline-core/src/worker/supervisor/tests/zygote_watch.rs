//! A zygote that does not answer.

use super::*;

const HUNG_UP: Happening = Happening::HungUp { life: Life { post: 0, generation: 0 } };
/// From the look at which a zygote seems to hang to the one that decides.
const SECOND_LOOK: Duration = Duration::from_secs(10);
const BORN_AGAIN: [Action; 1] = [Action::BearZygote { fresh: false }];

/// A run with one ready worker, whose socket was just closed at `NOW`.
fn asking() -> Supervisor {
    let mut supervisor = ready(settings(1)).0;
    supervisor.handle(Happening::Submitted { task: 0, post: None }, NOW);
    // The first ping was that after the fork.
    assert_eq!(supervisor.handle(HUNG_UP, NOW), [Action::PingZygote { number: 2 }]);
    supervisor
}

/// The engine looks when it should, and finds this.
fn look(supervisor: &mut Supervisor, ran: bool) -> Vec<Action> {
    let at = supervisor.next_deadline().unwrap();
    assert!(supervisor.must_look_at_zygote(at));
    let actions = supervisor.handle(Happening::ZygoteSeen { ran }, at);
    assert_eq!(supervisor.handle(Happening::TimePassed, at), []);
    actions
}

fn hang(supervisor: &mut Supervisor) -> Vec<Action> {
    assert_eq!(look(supervisor, false), []);
    look(supervisor, false)
}

#[test]
fn a_zygote_that_hangs_is_killed_and_its_tasks_go_to_the_workers_of_the_next() {
    let mut supervisor = asking();
    assert_eq!(supervisor.next_deadline(), Some(NOW + PATIENCE));
    assert_eq!(look(&mut supervisor, false), []);
    assert_eq!(supervisor.next_deadline(), Some(NOW + PATIENCE + SECOND_LOOK));
    assert_eq!(look(&mut supervisor, false), [Action::ZygoteHung, Action::EndZygote]);
    let now = NOW + PATIENCE + SECOND_LOOK;
    assert_eq!(supervisor.handle(Happening::ZygoteEnded, now), BORN_AGAIN);
    let forked = supervisor.handle(Happening::ZygoteReady, now);
    assert_eq!(forked[0], Action::Fork { life: life(0, 1) });
    let fed = supervisor.handle(Happening::Ready { life: life(0, 1) }, now);
    assert_eq!(fed, [send(0, 1, 0)]);
    assert_eq!(supervisor.deaths(), []);
}

#[test]
fn a_zygote_that_answers_is_not_looked_at() {
    let mut supervisor = asking();
    let early = NOW + PATIENCE / 2;
    let another = Happening::ZygoteAnswered { ping: None };
    assert_eq!(supervisor.handle(another, early), []);
    assert_eq!(supervisor.next_deadline(), Some(early + PATIENCE));
    supervisor.handle(Happening::ZygoteAnswered { ping: Some(2) }, early);
    assert_eq!(supervisor.next_deadline(), None);
}

#[test]
fn an_answer_to_an_older_ping_is_a_sign_of_life_and_not_the_answer() {
    let mut supervisor = asking();
    assert_eq!(supervisor.handle(HUNG_UP, NOW), [Action::PingZygote { number: 3 }]);
    supervisor.handle(Happening::ZygoteAnswered { ping: Some(2) }, NOW);
    assert_eq!(supervisor.next_deadline(), Some(NOW + PATIENCE));
    supervisor.handle(Happening::ZygoteAnswered { ping: Some(3) }, NOW);
    assert_eq!(supervisor.next_deadline(), None);
}

#[test]
fn a_zygote_that_uses_the_processor_is_told_of_once_and_killed_after_ten_extensions() {
    let mut supervisor = asking();
    assert_eq!(look(&mut supervisor, true), [Action::ZygoteSlow]);
    for _ in 1..10 {
        assert_eq!(look(&mut supervisor, true), []);
    }
    assert_eq!(look(&mut supervisor, true), [Action::ZygoteHung, Action::EndZygote]);
}

#[test]
fn a_zygote_that_runs_again_after_the_first_look_is_not_killed() {
    let mut supervisor = asking();
    assert_eq!(look(&mut supervisor, false), []);
    assert_eq!(look(&mut supervisor, true), [Action::ZygoteSlow]);
    assert_eq!(hang(&mut supervisor), [Action::ZygoteHung, Action::EndZygote]);
}

#[test]
fn three_zygotes_that_hang_without_a_result_in_between_end_the_run() {
    let mut supervisor = asking();
    for generation in 1..3 {
        assert_eq!(hang(&mut supervisor), [Action::ZygoteHung, Action::EndZygote]);
        supervisor.handle(Happening::ZygoteEnded, Duration::ZERO);
        let forked = supervisor.handle(Happening::ZygoteReady, Duration::ZERO);
        assert_eq!(forked[0], Action::Fork { life: life(0, generation) });
    }
    let failed = Action::Fail(Failure::ZygoteHangs);
    assert_eq!(hang(&mut supervisor)[..3], [Action::ZygoteHung, Action::EndZygote, failed]);
}

#[test]
fn a_result_in_between_makes_the_next_hang_the_first() {
    let mut supervisor = asking();
    for generation in 1..6 {
        assert_eq!(hang(&mut supervisor), [Action::ZygoteHung, Action::EndZygote]);
        supervisor.handle(Happening::ZygoteEnded, Duration::ZERO);
        supervisor.handle(Happening::ZygoteReady, Duration::ZERO);
        let life = life(0, generation);
        supervisor.handle(Happening::Ready { life }, Duration::ZERO);
        let task = u64::from(generation) - 1;
        let accepted = supervisor.handle(Happening::Answered { life, task }, Duration::ZERO);
        assert_eq!(accepted[0], Action::Accept { task });
        let next = Happening::Submitted { task: task + 1, post: None };
        supervisor.handle(next, Duration::ZERO);
    }
}

#[test]
fn a_fork_that_does_not_become_ready_is_killed_and_a_third_one_ends_the_run() {
    let mut supervisor = Supervisor::new(Settings { may_be_fresh: true, ..settings(1) });
    supervisor.start(Duration::ZERO);
    supervisor.handle(Happening::ZygoteStarted, NOW);
    assert_eq!(supervisor.next_deadline(), Some(NOW + PATIENCE));
    for _ in 0..2 {
        assert_eq!(hang(&mut supervisor), [Action::ZygoteHung, Action::EndZygote]);
        assert_eq!(supervisor.handle(Happening::ZygoteEnded, Duration::ZERO), BORN_AGAIN);
        supervisor.handle(Happening::ZygoteStarted, Duration::ZERO);
    }
    let failed = Action::Fail(Failure::ZygoteHangs);
    assert_eq!(hang(&mut supervisor), [Action::ZygoteHung, Action::EndZygote, failed]);
}

#[test]
fn a_fresh_interpreter_may_load_for_as_long_as_it_uses_the_processor() {
    let mut supervisor = Supervisor::new(settings(1));
    supervisor.start(Duration::ZERO);
    supervisor.handle(Happening::ZygoteStarted, NOW);
    assert_eq!(supervisor.next_deadline(), Some(NOW + START));
    assert_eq!(look(&mut supervisor, true), [Action::ZygoteSlow]);
    for _ in 0..100 {
        assert_eq!(look(&mut supervisor, true), []);
    }
    let late = Duration::from_secs(100_000);
    assert_eq!(
        supervisor.handle(Happening::ZygoteReady, late)[0],
        Action::Fork { life: life(0, 0) }
    );
}

#[test]
fn a_look_that_does_not_happen_is_due_again_soon() {
    let mut supervisor = asking();
    let at = NOW + PATIENCE;
    assert_eq!(supervisor.handle(Happening::TimePassed, at), []);
    assert_eq!(supervisor.next_deadline(), Some(at + DUMP));
}

#[test]
fn closed_descriptors_end_the_run() {
    let mut supervisor = asking();
    let actions = supervisor.handle(Happening::DescriptorsClosed, NOW);
    assert_eq!(actions[0], Action::Fail(Failure::DescriptorsClosed));
    assert_eq!(supervisor.handle(Happening::DescriptorsClosed, NOW), []);
}
