package controlplane

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

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
