package csi

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
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
// left; what is not a socket is never replaced. Until its mode is set the socket has
// what the process's umask leaves. It is bound under its own name, because the kubelet
// looks at each name that turns up where it expects plugins, and complains of one that
// has gone by then.
func listen(path string) (*net.UnixListener, error) {
	switch info, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("listen at %s: %w", path, err)
	case info.Mode()&fs.ModeSocket == 0:
		return nil, fmt.Errorf("listen at %s: there is something that is not a socket", path)
	default:
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("listen at %s: remove a stale socket: %w", path, err)
		}
	}
	listener, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen at %s: %w", path, err)
	}
	listener.SetUnlinkOnClose(false) // by then a successor may have the name
	if err := os.Chmod(path, 0o600); err != nil {
		return nil, fmt.Errorf("listen at %s: %w", path, errors.Join(err, listener.Close(), os.Remove(path)))
	}
	return listener, nil
}

// unlink removes a socket that listen made, as long as its path is still that
// socket and not the one of a successor.
func unlink(path string, bound os.FileInfo) error {
	now, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) || (err == nil && !os.SameFile(bound, now)) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("remove socket %s: %w", path, err)
	}
	if err := os.Remove(path); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("remove socket %s: %w", path, err)
	}
	return nil
}
