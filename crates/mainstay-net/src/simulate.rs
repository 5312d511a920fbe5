//! One simulated run: virtual time, one seed, one deadline.

use std::panic::resume_unwind;
use std::time::Duration;

use crate::env::Entropy;

/// The run did not end in time.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SimulateError {
    /// A deadlock looks like this too: with nothing to do, virtual time leaps to the deadline.
    #[error("run seed {seed:#x}: not finished after {deadline:?} of virtual time")]
    Deadline { seed: u64, deadline: Duration },
    #[error("run seed {seed:#x}: the run could not be started: {why}")]
    Start { seed: u64, why: String },
}

/// Runs `world` on virtual time in a thread of its own.
///
/// The thread is new (so its hash keys and thread-locals are its own), the runtime has one thread, no sockets, a paused
/// clock and seeded choices; so the same seed gives the same run. A panic inside goes on here, with the seed in its message.
pub fn simulate<T, W, F>(seed: u64, deadline: Duration, world: W) -> Result<T, SimulateError>
where
    T: Send,
    W: FnOnce(Entropy) -> F + Send,
    F: Future<Output = T>,
{
    std::thread::scope(|scope| {
        let run = move || run(seed, deadline, world);
        let failed = |cause: std::io::Error| SimulateError::Start {
            seed,
            why: cause.to_string(),
        };
        let thread = std::thread::Builder::new()
            .name(format!("run seed {seed:#x}"))
            // Unoptimised futures of a whole world are deep.
            .stack_size(16 << 20)
            .spawn_scoped(scope, run)
            .map_err(failed)?;
        thread
            .join()
            .unwrap_or_else(|panic| resume_unwind(Box::new(format!("run seed {seed:#x}: {}", text_of(&*panic)))))
    })
}

fn run<T, W, F>(seed: u64, deadline: Duration, world: W) -> Result<T, SimulateError>
where
    W: FnOnce(Entropy) -> F,
    F: Future<Output = T>,
{
    // kube's watcher draws its pauses from this thread-local generator.
    fastrand::seed(seed);
    // No I/O driver: a stray socket then fails loudly instead of racing real time against virtual time.
    let mut builder = tokio::runtime::Builder::new_current_thread();
    builder.enable_time().start_paused(true);
    // Libraries use unbiased `select!`; russh's order of events depends on it.
    #[cfg(tokio_unstable)]
    builder.rng_seed(tokio::runtime::RngSeed::from_bytes(&seed.to_be_bytes()));
    // A panic in a simulated server would otherwise look like a broken connection, and the run might even pass.
    #[cfg(tokio_unstable)]
    builder.unhandled_panic(tokio::runtime::UnhandledPanic::ShutdownRuntime);
    let runtime = builder.build().map_err(|cause| SimulateError::Start {
        seed,
        why: cause.to_string(),
    })?;
    runtime.block_on(async {
        let run = tokio::time::timeout(deadline, world(Entropy::from_seed(seed)));
        run.await.map_err(|_| SimulateError::Deadline { seed, deadline })
    })
}

fn text_of(panic: &(dyn std::any::Any + Send)) -> &str {
    let owned = panic.downcast_ref::<String>().map(String::as_str);
    owned
        .or_else(|| panic.downcast_ref::<&str>().copied())
        .unwrap_or("panic without a text")
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn an_hour_passes_at_once() {
        let took = simulate(1, HOUR * 2, |_| async {
            let start = tokio::time::Instant::now();
            tokio::time::sleep(HOUR).await;
            start.elapsed()
        });
        assert_eq!(took, Ok(HOUR));
    }

    #[test]
    fn a_deadlock_ends_at_the_deadline_with_the_seed() {
        let stuck = simulate(0x5eed, HOUR, |_| std::future::pending::<()>()).unwrap_err();
        assert_eq!(stuck.to_string(), "run seed 0x5eed: not finished after 3600s of virtual time");
    }

    #[test]
    #[should_panic(expected = "run seed 0x2a: three members, one quorum")]
    fn a_panic_carries_the_seed() {
        let _ = simulate(42, HOUR, |_| async { panic!("three members, one quorum") });
    }

    #[test]
    #[cfg_attr(not(tokio_unstable), ignore = "needs tokio_unstable")]
    #[should_panic(expected = "run seed 0x7")]
    fn a_panic_in_any_task_ends_the_run() {
        let _ = simulate(7, HOUR, |_| async {
            tokio::spawn(async { panic!("in a simulated server") });
            tokio::time::sleep(Duration::from_secs(1)).await;
        });
    }

    #[test]
    #[should_panic(expected = "IO is disabled")]
    fn a_real_socket_is_refused() {
        let _ = simulate(1, HOUR, |_| async {
            tokio::net::TcpListener::bind("127.0.0.1:0").await.map(drop)
        });
    }
}
