package csi

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"
)

// socketPath returns the path of an endpoint of the form unix:///path.
func socketPath(endpoint string) (string, error) {
	path, ok := strings.CutPrefix(endpoint, "unix://")
	if !ok || !filepath.IsAbs(path) {
		return "", fmt.Errorf("Invalid value: %q: must be unix:// and an absolute path", endpoint)
	}
	return filepath.Clean(path), nil
}

// listen binds a unix socket with mode 0600 and replaces one that a dead process
// left; what is not a socket is never replaced. The end of the listener removes it. It is bound under its own name, because
// the kubelet looks at each name that turns up where it expects plugins, and complains of
// one that has gone by then.
func listen(ctx context.Context, path string) (net.Listener, error) {
	switch info, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("listen at %s: %w", path, err)
	case info.Mode()&fs.ModeSocket == 0:
		return nil, fmt.Errorf("listen at %s: there is something that is not a socket", path)
	default:
		if err := unix.Unlink(path); err != nil {
			return nil, fmt.Errorf("listen at %s: remove a stale socket: %w", path, err)
		}
	}
	config := net.ListenConfig{Control: forRootOnly}
	listener, err := config.Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", path, err)
	}
	return listener, nil
}

// forRootOnly gives a socket the mode that bind then makes its file with: there is no
// moment at which it has another, and no path to change it at, which could lead to
// something else by then.
func forRootOnly(_, _ string, conn syscall.RawConn) error {
	var err error
	controlErr := conn.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) })
	if err := errors.Join(err, controlErr); err != nil {
		return fmt.Errorf("set the socket's mode: %w", err)
	}
	return nil
}
