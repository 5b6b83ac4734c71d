//! Memory of connections that are open and not in use, at both of their ends.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr, TcpListener},
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use http_body_util::Full;
use hyper::{Request, header::RANGE};
use tokio::runtime::{Builder, LocalOptions};
use tokio_rustls::TlsConnector;

use crate::{
    blob::{Blob, BlobRequest, Found, Holder, Reply},
    connection::AskedNode,
    identity::{Keys, Secret},
    limits::CONNECTIONS_MAX,
    members::{Member, Members},
    serve::Server,
    wire::{BlobId, Common, Kind, range_header},
};

const LENGTH: usize = 100_000;
/// Most memory of all connections, at both ends together: 40 KiB an end. They share this process.
const BYTES_MAX: usize = 80 << 20;

#[derive(Debug)]
struct Zeros;

impl Blob for Zeros {
    fn length(&self) -> u64 {
        LENGTH as u64
    }

    fn read(&self, _: u64, room: &mut [u8]) -> std::io::Result<()> {
        room.fill(0);
        Ok(())
    }
}

impl Holder for Zeros {
    fn asked(&self, _: BlobRequest, reply: Reply) {
        reply.send(Found::Blob(Arc::new(Self)));
    }
}

fn resident_bytes() -> usize {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap();
    line.trim().trim_end_matches(" kB").parse::<usize>().unwrap() << 10
}

#[test]
fn a_thousand_connections_that_are_idle_take_little_memory() {
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let raised = rustix::process::Rlimit {
        current: limit.maximum,
        ..limit
    };
    rustix::process::setrlimit(rustix::process::Resource::Nofile, raised).unwrap();
    let (secret, kind) = (Secret::new([7; 32]), Kind::Samples);
    let nodes = u16::try_from(CONNECTIONS_MAX).unwrap() + 1;
    let server_node = nodes - 1;
    let member = |number: u16| Member {
        name: format!("node{number}"),
        address: SocketAddr::from((Ipv4Addr::from(0x7f01_0000 + u32::from(number)), 9)),
    };
    let members = Members::new(1, (0..nodes).map(member).collect(), usize::from(server_node)).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let server = Server::start(kind, &secret, &members, listener, Arc::new(Zeros)).unwrap();
    let address = server.address();
    let keys = Keys::new(&secret, kind, nodes, 0).unwrap();
    let before = resident_bytes();
    let runtime = Builder::new_current_thread()
        .enable_io()
        .enable_time()
        .build_local(LocalOptions::default())
        .unwrap();
    let grown = runtime.block_on(async {
        let mut asked = Vec::new();
        for node in 0..server_node {
            let config = keys.for_asking_as(secret.certified_key(kind, node).unwrap(), server_node).unwrap();
            let connection = Rc::new(AskedNode::new(
                (server_node, address),
                TlsConnector::from(config),
                false,
                Box::new(|| None),
                (Rc::default(), Instant::now()),
            ));
            let make = |within| {
                let mut request = Request::get(format!("/1/samples/{}", BlobId([1; 16]))).body(Full::default()).ok()?;
                request.headers_mut().insert(RANGE, range_header(&(0..LENGTH as u64)));
                let members = members.digest();
                Common { within, turn: 0, members }.write(request.headers_mut());
                Some(request)
            };
            let deadline = Instant::now() + Duration::from_secs(20);
            let came = connection.exchange(deadline, make, async |response| {
                connection.receive(response.body_mut(), deadline, LENGTH, |_, _| true).await
            });
            assert_eq!(came.await, Some(true), "node {node}");
            asked.push(connection);
        }
        assert_eq!(asked.len(), CONNECTIONS_MAX);
        assert!(asked.iter().all(|connection| connection.idle_connections() == 1));
        resident_bytes() - before
    });
    assert_eq!(
        server.served().ranges.load(std::sync::atomic::Ordering::Relaxed),
        CONNECTIONS_MAX as u64
    );
    assert!(grown <= BYTES_MAX, "{grown} bytes for {CONNECTIONS_MAX} connections");
}
