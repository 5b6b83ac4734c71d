//! Clones on other hosts: `forebay clone serve JOB` at the host of the job, `forebay clone JOB --from HOST` at that of
//! the clone.

use std::{
    net::{IpAddr, SocketAddr, TcpListener, TcpStream, ToSocketAddrs},
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use forebay_agent::{
    forks::{
        client::{jobs, ranks_here},
        hosts::{ForkServer, RemoteJob, Ticket, TicketHost, TicketLock},
    },
    host::private_dir::private_dir_all,
};
use forebay_settings::{
    environment::Environment,
    roles::{self, RoleCaller},
    text,
    user_error::UserError,
};
use signal_hook::consts::signal;

use crate::{args::CloneArgs, print, tell};

/// Interval between two looks for the end of a served job.
const LOOK_EVERY: Duration = Duration::from_millis(500);
/// Time after which a job that is not found any more has ended: its fork agent may be replaced.
const GONE_AFTER: Duration = Duration::from_secs(10);
/// Longest wait for a connection to the host of a job.
const CONNECT_MAX: Duration = Duration::from_secs(5);
/// Address on which a job is served unless one is given: all of this host's, any port.
const ANY: &str = "0.0.0.0";

/// Serves a job of this host to other hosts, until it ends or a signal comes; gives the exit status.
///
/// # Errors
/// No such job, an address that can't be listened on, or a ticket that can't be written.
pub(super) fn serve(job: &str, listen: Option<&str>, ticket: Option<&Path>, environment: &Environment) -> Result<u8, UserError> {
    let dir = roles::forks_dir(environment)?;
    let trains = || jobs(&dir).is_ok_and(|jobs| jobs.iter().any(|found| found.job == job));
    if !trains() {
        return Err(UserError::bad_input(format_args!(
            "no job '{job}' that can be forked trains on this node: forebay clone ls lists those that do"
        )));
    }
    let (host, port) = host_and_port(listen.unwrap_or(ANY)).ok_or_else(|| {
        UserError::bad_input(format_args!(
            "--listen {}: expected an address of this host, and perhaps a port, such as 10.0.0.1:7000",
            listen.unwrap_or(ANY)
        ))
    })?;
    let port = port.unwrap_or(0);
    let fail = |error| {
        UserError::bad_input(format_args!(
            "--listen {host}:{port}: {error}; name an address of this host and a free port"
        ))
    };
    let listener = TcpListener::bind((host, port)).map_err(fail)?;
    let address = listener.local_addr().map_err(fail)?;
    let known = if address.ip().is_unspecified() {
        rustix::system::uname().nodename().to_string_lossy().into_owned()
    } else {
        host.to_owned()
    };
    let path = ticket_path(job, ticket, environment)?;
    if ticket.is_none()
        && let Some(parent) = path.parent()
    {
        private_dir_all(parent).map_err(UserError::bad_input)?;
    }
    // Before the ticket exists: a signal removes it.
    let is_told = Arc::new(AtomicBool::new(false));
    for number in [signal::SIGINT, signal::SIGTERM, signal::SIGHUP] {
        signal_hook::flag::register(number, Arc::clone(&is_told))
            .map_err(|error| UserError::bad_input(format_args!("signals can't be handled: {error}")))?;
    }
    let host = TicketHost {
        host: known,
        port: address.port(),
    };
    let ranks = ranks_here(&dir, job).map_err(UserError::bad_input)?;
    // Servers of one host's jobs do not meet in a ticket.
    let is_alone = ranks.here.len() == ranks.ranks as usize;
    let lock = || TicketLock::take(&path).map_err(UserError::bad_input);
    let lock = (!is_alone).then(lock).transpose()?;
    let ticket = if is_alone {
        Ticket::new(job, host.clone())
    } else {
        Ticket::joined(&path, job, host.clone(), serves)
    };
    let ticket = ticket.map_err(|error| UserError::bad_input(format_args!("the kernel gives no random bytes: {error}")))?;
    let server = ForkServer::start(dir.clone(), &ticket, listener).map_err(UserError::bad_input)?;
    ticket.write(&path).map_err(UserError::bad_input)?;
    drop(lock);
    print(&serving_line(&ticket, &host, &path));
    until_over(job, &server, &is_told, trains);
    let _lock = (!is_alone).then(|| TicketLock::take(&path));
    ticket.leave(&path, &host);
    Ok(0)
}

/// Waits until a served job has ended, and nobody needs its state any more, or a signal has come.
fn until_over(job: &str, server: &ForkServer, is_told: &AtomicBool, trains: impl Fn() -> bool) {
    let mut gone: Option<Instant> = None;
    while !is_told.load(Relaxed) {
        thread::sleep(LOOK_EVERY);
        let forks = server.sweep();
        if trains() {
            gone = None;
        } else if gone.get_or_insert_with(Instant::now).elapsed() > GONE_AFTER && forks == 0 {
            break;
        }
    }
    let why = if is_told.load(Relaxed) {
        "is not served any more"
    } else {
        "has ended"
    };
    tell(&format!(
        "forebay: {job} {why}; {} bytes of its state were sent\n",
        server.sent_bytes()
    ));
}

/// Returns whether somebody takes connections at an address of a ticket.
fn serves(host: &TicketHost) -> bool {
    let addresses = (host.host.as_str(), host.port).to_socket_addrs();
    addresses.is_ok_and(|mut addresses| addresses.any(|address| TcpStream::connect_timeout(&address, CONNECT_MAX).is_ok()))
}

fn serving_line(ticket: &Ticket, host: &TicketHost, path: &Path) -> String {
    let (job, TicketHost { host, port }) = (&ticket.job, host);
    let others = match ticket.hosts.len() - 1 {
        0 => String::new(),
        others => format!(" and at {}", text::counted(others as u64, "other host", "other hosts")),
    };
    format!(
        "serving {job} at {host}:{port}{others}; on another host: forebay clone {job} --from {host} --ticket {} -- PROGRAM\n",
        path.display()
    )
}

/// Begins a fork of a job on another host, if the arguments name one. Returns the directory of this host's fork agent,
/// at which the job is registered now.
///
/// # Errors
/// A ticket that is refused, a host that does not resolve, can't be reached or refuses, or a shadow verification.
pub(super) fn begin(
    job: &str,
    args: &CloneArgs,
    (at, shadow): (Option<u64>, Option<u32>),
    environment: &Environment,
) -> Result<Option<(PathBuf, RemoteJob)>, UserError> {
    if args.from.is_none() && args.ticket.is_none() {
        return match &args.group {
            Some(group) => Err(UserError::bad_input(format_args!(
                "--group {group}: hosts of a clone meet at one of the job; name that by --from HOST"
            ))),
            None => Ok(None),
        };
    }
    if shadow.unwrap_or(0) > 0 {
        return Err(UserError::bad_input(
            "--verify shadow:N: a job on another host can't be compared with its clone after more steps; use --verify digest",
        ));
    }
    let path = ticket_path(job, args.ticket.as_deref(), environment)?;
    let ticket = Ticket::read(&path).map_err(UserError::bad_input)?;
    if ticket.job != job {
        return Err(UserError::bad_input(format_args!(
            "the ticket {} is of job {}, not of {job}: name that of {job} by --ticket FILE",
            path.display(),
            ticket.job
        )));
    }
    let hosts = asked_hosts(&ticket, args.from.as_deref())?;
    let reached = reached_all(job, &hosts)?;
    let command = std::env::current_exe().map_err(|error| UserError::bad_input(format_args!("this command can't find itself: {error}")))?;
    let caller = RoleCaller {
        environment,
        command: &command,
        is_interrupted: &|| false,
    };
    let mut remote = RemoteJob::begin(&ticket, &reached, at, args.group.as_deref()).map_err(UserError::bad_input)?;
    let dir = roles::start_fork_agent(&caller)?;
    remote.register(&dir).map_err(UserError::bad_input)?;
    Ok(Some((dir, remote)))
}

/// Returns hosts and ports at which the ranks of a job are served: those of the ticket, or those that `--from` names in
/// their order. A ticket with several hosts may be meant by the name of one.
fn asked_hosts(ticket: &Ticket, from: Option<&str>) -> Result<Vec<(String, u16)>, UserError> {
    let known = || ticket.hosts.iter().map(|host| (host.host.clone(), host.port)).collect();
    let Some(from) = from else { return Ok(known()) };
    if ticket.hosts.len() > 1 && ticket.hosts.iter().any(|host| host.host == from) {
        return Ok(known());
    }
    let names: Vec<_> = from.split(',').collect();
    if names.len() != ticket.hosts.len() {
        let hosts: Vec<_> = ticket.hosts.iter().map(|host| host.host.as_str()).collect();
        return Err(UserError::bad_input(format_args!(
            "--from {from}: the ticket has {}, {}: leave --from out, or name an address for each, with commas between",
            text::counted(hosts.len() as u64, "host", "hosts"),
            hosts.join(", ")
        )));
    }
    let named = names.into_iter().zip(&ticket.hosts).map(|(name, host)| {
        let (name, port) = host_and_port(name).ok_or_else(|| {
            UserError::bad_input(format_args!(
                "--from {from}: expected a host, and perhaps a port, such as node7:7000"
            ))
        })?;
        Ok((name.to_owned(), port.unwrap_or(host.port)))
    });
    named.collect()
}

fn ticket_path(job: &str, given: Option<&Path>, environment: &Environment) -> Result<PathBuf, UserError> {
    given.map_or_else(|| roles::ticket_path(environment, job), |path| Ok(environment.make_absolute(path)))
}

/// Returns each host's name and port, and its first address that takes a connection. All are tried at the same time.
fn reached_all(job: &str, hosts: &[(String, u16)]) -> Result<Vec<(String, SocketAddr)>, UserError> {
    thread::scope(|scope| {
        let reach = |(host, port): &(String, u16)| Ok((format!("{host}:{port}"), reached(job, host, *port)?));
        let trying: Vec<_> = hosts.iter().map(|host| scope.spawn(move || reach(host))).collect();
        let failed = || Err(UserError::bad_input("a thread failed"));
        trying.into_iter().map(|one| one.join().unwrap_or_else(|_| failed())).collect()
    })
}

/// Returns the first address of a host that takes a connection.
fn reached(job: &str, host: &str, port: u16) -> Result<SocketAddr, UserError> {
    let addresses = (host, port).to_socket_addrs().map_err(|error| {
        UserError::bad_input(format_args!(
            "--from {host}: the name does not resolve: {error}; check it, or give an address"
        ))
    })?;
    let mut why = "it has no address".to_owned();
    for address in addresses {
        match TcpStream::connect_timeout(&address, CONNECT_MAX) {
            Ok(_) => return Ok(address),
            Err(error) => why = error.to_string(),
        }
    }
    Err(UserError::bad_input(format_args!(
        "--from {host}: nobody takes a connection at port {port}: {why}; look whether `forebay clone serve {job}` runs there"
    )))
}

/// Splits `HOST`, `HOST:PORT`, `ADDRESS` or `[ADDRESS]:PORT`.
fn host_and_port(text: &str) -> Option<(&str, Option<u16>)> {
    if text.parse::<IpAddr>().is_ok() {
        return Some((text, None));
    }
    let (host, port) = match text.rsplit_once(':') {
        Some((host, port)) => (host, Some(port.parse().ok()?)),
        None => (text, None),
    };
    let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
    (!host.is_empty() && (!host.contains(':') || host.parse::<IpAddr>().is_ok())).then_some((host, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_ports_are_told_apart() {
        for (text, expected) in [
            ("node7", Some(("node7", None))),
            ("node7:7000", Some(("node7", Some(7000)))),
            ("10.0.0.1", Some(("10.0.0.1", None))),
            ("10.0.0.1:0", Some(("10.0.0.1", Some(0)))),
            ("fe80::1", Some(("fe80::1", None))),
            ("[fe80::1]:7000", Some(("fe80::1", Some(7000)))),
            ("", None),
            (":7000", None),
            ("node7:", None),
            ("node7:70000", None),
            ("a:b:7000", None),
        ] {
            assert_eq!(host_and_port(text), expected, "{text}");
        }
    }
}
