package csi

import (
	"context"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

// wantSockets fails the test unless the directories of both sockets contain exactly these.
func (s *testServer) wantSockets(want ...string) {
	s.Helper()
	for _, path := range []string{s.path, s.registrationPath} {
		entries, err := os.ReadDir(filepath.Dir(path))
		must(s, err)
		for _, entry := range entries {
			found := filepath.Join(filepath.Dir(path), entry.Name())
			if len(want) == 0 || (found != want[0] && found != want[len(want)-1]) {
				s.Errorf("left is %s", found)
			}
		}
	}
}

func TestSocketsAreForRootOnlyAndGoAtTheEnd(t *testing.T) {
	s := serve(t, nil)
	for _, path := range []string{s.path, s.registrationPath} {
		info, err := os.Lstat(path)
		must(t, err)
		if info.Mode() != fs.ModeSocket|0o600 {
			t.Errorf("%s has mode %v", path, info.Mode())
		}
	}
	s.wantSockets(s.path, s.registrationPath)
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	s.wantSockets()
}

func TestACallThatTakesTooLongIsCut(t *testing.T) {
	s := serve(t, func(o *Options) { o.DrainTimeout = 10 * time.Millisecond })
	begun, cut := make(chan struct{}), make(chan struct{})
	s.publisher.publish = func(ctx context.Context) error {
		close(begun)
		<-ctx.Done()
		close(cut)
		return ctx.Err()
	}
	result := make(chan error, 1)
	go func() {
		_, err := s.node.NodePublishVolume(t.Context(), publishRequestOf(nil))
		result <- err
	}()
	<-begun
	if err := s.stop(); err != nil {
		t.Error(err)
	}
	<-cut // the call ended before the server did
	if code := status.Code(<-result); code != codes.Unavailable && code != codes.Canceled {
		t.Errorf("the caller got %s, which the kubelet takes for final", code)
	}
	s.wantSockets()
}
