//! What of a step is under way when a run is to end: its requests are answered first, its waits are left at once.
//!
//! A step may be left between any two requests, because every action reads the current state first. In the middle of a request that changes
//! something its outcome would be unknown, so each such request goes through [`send`].

use std::collections::BTreeSet;
use std::future::poll_fn;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::task::Poll;

use pve_api::Upid;
use tokio_util::sync::CancellationToken;

tokio::task_local! {
    /// Of the step that is being polled. The engine's functions send on behalf of one step each, far below the executor.
    static CURRENT: Arc<InFlight>;
}

/// When the steps of a round are to be left before their time.
#[derive(Debug, Clone)]
pub struct RoundEnd {
    /// The user wants the run to end.
    pub asked: CancellationToken,
    /// Every step is left as soon as its request is answered.
    pub stop: CancellationToken,
    /// The plan is to be made anew. Steps that follow a task of Proxmox VE go on until `stop`, which follows soon.
    pub replan: CancellationToken,
}

impl RoundEnd {
    pub fn of(asked: &CancellationToken) -> Self {
        Self {
            asked: asked.clone(),
            stop: asked.child_token(),
            replan: CancellationToken::new(),
        }
    }

    /// No step begins any more.
    pub fn is_over(&self) -> bool {
        self.stop.is_cancelled() || self.replan.is_cancelled()
    }
}

/// The requests and tasks of one step.
#[derive(Debug, Default)]
pub struct InFlight {
    requests: AtomicUsize,
    /// Nothing more is to be sent.
    closed: AtomicBool,
    /// Tasks of Proxmox VE whose end it waits for.
    tasks: Mutex<BTreeSet<String>>,
}

impl InFlight {
    /// The tasks that it waited for when it was left.
    pub fn tasks(&self) -> Vec<String> {
        self.tasks.lock().expect("plain data").iter().cloned().collect()
    }

    /// Runs a step to its end. `None`: it was left, and no request of it is in flight.
    pub async fn run<T>(self: &Arc<Self>, end: &RoundEnd, step: impl Future<Output = T>) -> Option<T> {
        let mut step = pin!(CURRENT.scope(self.clone(), step));
        tokio::select! {
            biased;
            result = &mut step => return Some(result),
            () = end.stop.cancelled() => {}
            () = end.replan.cancelled() => {
                if !self.tasks().is_empty() {
                    tokio::select! {
                        biased;
                        result = &mut step => return Some(result),
                        () = end.stop.cancelled() => {}
                    }
                }
            }
        }
        self.closed.store(true, Ordering::Relaxed);
        // It is polled only as long as the answer to a request is awaited: nothing else of it goes on.
        let is_answered = || self.requests.load(Ordering::Relaxed) == 0;
        poll_fn(|context| {
            if is_answered() {
                return Poll::Ready(None);
            }
            match step.as_mut().poll(context) {
                Poll::Ready(result) => Poll::Ready(Some(result)),
                Poll::Pending if is_answered() => Poll::Ready(None),
                Poll::Pending => Poll::Pending,
            }
        })
        .await
    }
}

/// Counts a request until its answer is there.
struct Counted(Arc<InFlight>);

impl Counted {
    fn new(step: Arc<InFlight>) -> Self {
        step.requests.fetch_add(1, Ordering::Relaxed);
        Self(step)
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.requests.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Sends a request that changes something. The step is not left before the answer is there. Once it is to be left, nothing is sent.
pub async fn send<T>(request: impl Future<Output = T>) -> T {
    let Ok(step) = CURRENT.try_with(Arc::clone) else {
        return request.await;
    };
    if step.closed.load(Ordering::Relaxed) {
        return std::future::pending().await;
    }
    let _counted = Counted::new(step);
    request.await
}

/// Waits for the end of a task of Proxmox VE, which goes on if the step is left.
pub async fn follow<T>(upid: &Upid, end: impl Future<Output = T>) -> T {
    let Ok(step) = CURRENT.try_with(Arc::clone) else {
        return end.await;
    };
    let name = upid.to_string();
    step.tasks.lock().expect("plain data").insert(name.clone());
    let result = end.await;
    step.tasks.lock().expect("plain data").remove(&name);
    result
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::{Instant, sleep};

    use super::*;

    const UPID: &str = "UPID:pve1:0000A1B2:00C3D4E5:66F7A8B9:qmconfig:3000:root@pam!mainstay:";

    async fn stopped_after<T>(millis: u64, step: impl Future<Output = T>) -> (Option<T>, Duration, Vec<String>) {
        let end = RoundEnd::of(&CancellationToken::new());
        let flight = Arc::new(InFlight::default());
        let began = Instant::now();
        let stop = async {
            sleep(Duration::from_millis(millis)).await;
            end.stop.cancel();
        };
        let (result, ()) = futures::future::join(flight.run(&end, step), stop).await;
        (result, began.elapsed(), flight.tasks())
    }

    #[tokio::test(start_paused = true)]
    async fn a_wait_is_left_at_once_and_its_task_is_named() {
        let upid: Upid = UPID.parse().expect("a UPID");
        let (result, took, tasks) = stopped_after(100, follow(&upid, sleep(Duration::from_secs(900)))).await;
        assert_eq!((result, took.as_millis()), (None, 100));
        assert_eq!(tasks, [UPID]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_is_answered_before_the_step_is_left_and_no_other_is_sent() {
        let sent = &AtomicUsize::new(0);
        let request = |seconds| {
            send(async move {
                sent.fetch_add(1, Ordering::Relaxed);
                sleep(Duration::from_secs(seconds)).await;
            })
        };
        let step = async {
            request(30).await;
            request(30).await;
        };
        let (result, took, tasks) = stopped_after(100, step).await;
        assert_eq!((result, took.as_secs(), tasks.len()), (None, 30, 0));
        assert_eq!(sent.load(Ordering::Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_plan_leaves_waits_for_guests_and_not_those_for_tasks() {
        let upid: Upid = UPID.parse().expect("a UPID");
        let end = RoundEnd::of(&CancellationToken::new());
        end.replan.cancel();
        let guest = Arc::new(InFlight::default()).run(&end, sleep(Duration::from_secs(900))).await;
        assert_eq!(guest, None);
        let task = follow(&upid, sleep(Duration::from_secs(3)));
        let flight = Arc::new(InFlight::default());
        assert_eq!(flight.run(&end, task).await, Some(()));
    }
}
