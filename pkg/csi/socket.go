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

// listen binds a unix socket with mode 0600. It replaces a socket that a dead process left, but no other file. The socket is removed when
// the listener is closed. It is bound under its final name, because the kubelet examines each name in the plugins' directory, and logs an
// error if the name is gone by then.
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
	config := net.ListenConfig{Control: setSocketMode}
	listener, err := config.Listen(ctx, "unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", path, err)
	}
	return listener, nil
}

// setSocketMode sets the mode of a socket before bind creates its file with the same mode. So the file never has another mode, and no path
// is used that could lead to something else meanwhile.
func setSocketMode(_, _ string, conn syscall.RawConn) error {
	var err error
	controlErr := conn.Control(func(fd uintptr) { err = unix.Fchmod(int(fd), 0o600) })
	if err := errors.Join(err, controlErr); err != nil {
		return fmt.Errorf("set the socket's mode: %w", err)
	}
	return nil
}
