package controlplane

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/refvol/refvol/e2e/tools/process"
)

// startEtcd needs no readiness check: the API server waits for its socket. Clients
// and peers come over unix sockets, which need no port and let nobody in who can't
// enter the directory; the advertised addresses are never dialled.
func (c *ControlPlane) startEtcd() error {
	const peer = "http://127.0.0.1:2380"
	p, err := process.Start(process.Options{
		Path: c.opts.Binaries.Etcd,
		Log:  c.path("etcd.log"),
		Args: []string{
			"--name=etcd",
			"--data-dir=" + c.path("etcd"),
			"--listen-client-urls=" + c.etcdURL(),
			"--advertise-client-urls=http://127.0.0.1:2379",
			"--listen-peer-urls=unix://" + c.path("peer.sock"),
			"--initial-advertise-peer-urls=" + peer,
			"--initial-cluster=etcd=" + peer,
			"--unsafe-no-fsync",
			"--log-level=warn",
		},
	})
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.etcd = p
	return nil
}

func (c *ControlPlane) etcdURL() string { return "unix://" + c.path("etcd.sock") }

// StartAPIServer starts the API server and waits until it is ready. After
// StopAPIServer it comes back on the same address, with the same keys and data. It
// does nothing if the server runs.
func (c *ControlPlane) StartAPIServer(ctx context.Context) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.attached != "" {
		return errAttached
	}
	if c.apiServer != nil {
		return nil
	}
	probe, done, err := c.newProbe()
	if err != nil {
		return err
	}
	defer done()
	p, err := process.Start(process.Options{
		Path: c.opts.Binaries.APIServer,
		Log:  c.path("kube-apiserver.log"),
		Args: c.apiServerArgs(),
	})
	if err != nil {
		return err
	}
	if err := p.Await(ctx, probe); err != nil {
		return errors.Join(err, p.Kill())
	}
	c.apiServer = p
	return nil
}

func (c *ControlPlane) apiServerArgs() []string {
	return []string{
		"--etcd-servers=" + c.etcdURL(),
		"--bind-address=127.0.0.1",
		"--secure-port=" + strconv.Itoa(c.port.number),
		// The port stays bound by this process, see reservedPort.
		"--permit-port-sharing",
		"--cert-dir=" + c.path("certs"),
		"--token-auth-file=" + c.path(tokenFile),
		"--service-account-issuer=https://kubernetes.default.svc",
		"--service-account-key-file=" + c.path(signingKeyFile),
		"--service-account-signing-key-file=" + c.path(signingKeyFile),
		"--authorization-mode=Node,RBAC", // as kubeadm has
		"--service-cluster-ip-range=10.0.0.0/24",
		"--allow-privileged=true", // as every cluster has it that runs a CSI driver
		// Without these two the server looks for an address to publish, which a
		// machine without a network has not.
		"--advertise-address=127.0.0.1",
		"--endpoint-reconciler-type=none",
	}
}

// StopAPIServer kills the API server and waits for it: an outage. etcd stays.
func (c *ControlPlane) StopAPIServer() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.attached != "" {
		return errAttached
	}
	if c.apiServer == nil {
		return nil
	}
	p := c.apiServer
	c.apiServer = nil
	return p.Kill()
}

// newProbe returns a function that asks whether the API server is ready, and one that ends its connection. It has a
// client of its own, because the server's certificate, which it makes itself, may not be there yet.
func (c *ControlPlane) newProbe() (probe func(context.Context) error, done func(), err error) {
	client, err := kubernetes.NewForConfig(&rest.Config{
		Host: c.address(), BearerToken: c.token, QPS: -1,
		TLSClientConfig: rest.TLSClientConfig{Insecure: true}, // our own child, on loopback
	})
	if err != nil {
		return nil, nil, fmt.Errorf("client of the control plane: %w", err)
	}
	probe = func(ctx context.Context) error { return client.RESTClient().Get().AbsPath("/readyz").Do(ctx).Error() }
	return probe, func() { closeIdleConnections(client) }, nil
}

// reservedPort keeps a loopback port for a server that shares it (SO_REUSEPORT),
// through all its restarts: the socket here is bound but never listens, so the
// kernel gives the port to nobody else and sends no connection here.
type reservedPort struct {
	fd     int
	number int
}

func reservePort() (*reservedPort, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("reserve a port: %w", os.NewSyscallError("socket", err))
	}
	number, err := bindShared(fd)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("reserve a port: %w", err)
	}
	return &reservedPort{fd: fd, number: number}, nil
}

// bindShared permits sharing only after the bind: a socket that permits it before
// may be given a port that another one shares already.
func bindShared(fd int) (int, error) {
	if err := unix.Bind(fd, &unix.SockaddrInet4{Addr: [4]byte{127, 0, 0, 1}}); err != nil {
		return 0, os.NewSyscallError("bind", err)
	}
	if err := unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_REUSEPORT, 1); err != nil {
		return 0, os.NewSyscallError("setsockopt SO_REUSEPORT", err)
	}
	name, err := unix.Getsockname(fd)
	if err != nil {
		return 0, os.NewSyscallError("getsockname", err)
	}
	in4, ok := name.(*unix.SockaddrInet4)
	if !ok {
		return 0, fmt.Errorf("bound to an address of type %T", name)
	}
	return in4.Port, nil
}

// Close gives the port back.
func (p *reservedPort) Close() error { return os.NewSyscallError("close", unix.Close(p.fd)) }
