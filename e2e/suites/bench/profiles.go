package main

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// profiling is what a plugin is started with so that its profiles can be had.
const profiling = "--profiling-address=127.0.0.1:0"

// keepHeap writes the heap profile of a process to the directory of profiles, if one was
// asked for.
func (l *lab) keepHeap(ctx context.Context, s *subject, name string) error {
	return l.keep(ctx, s, name, "/debug/pprof/heap?gc=1")
}

// keepCPU begins to profile the CPU time of the node's plugin, if profiles were asked for,
// for as long as a scenario should take. The returned function waits for the end of that.
func (l *lab) keepCPU(ctx context.Context, n *node, name string, duration time.Duration) (wait func() error) {
	ended := make(chan error, 1)
	go func() {
		var err error
		if l.bench.profiles != "" {
			var s *subject
			if s, err = n.subject(); err == nil {
				err = l.keep(ctx, s, name, fmt.Sprintf("/debug/pprof/profile?seconds=%d", max(1, int(duration.Seconds()))))
			}
		}
		ended <- err
	}()
	return func() error { return <-ended }
}

// keep writes what a process serves at a path into a file of the directory of profiles.
func (l *lab) keep(ctx context.Context, s *subject, name, path string) error {
	if l.bench.profiles == "" {
		return nil
	}
	profile, err := s.get(ctx, path)
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(l.bench.profiles, name+".pb.gz"), profile, 0o644)
}
