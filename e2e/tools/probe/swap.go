package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// Names in a directory in which a decoy and a link change places.
const (
	decoyName = "decoy"
	swapName  = "swap"
	awayName  = "away"
	belowName = "below"
)

// swapper exchanges a directory with a link again and again, so that who looks at it and
// then uses it may find another thing there. It is for one goroutine.
type swapper struct {
	dir     string
	targets []string
}

// prepare makes the decoy: a directory with a file and a directory.
func (s *swapper) prepare() error {
	decoy := filepath.Join(s.dir, swapName)
	err := os.MkdirAll(filepath.Join(decoy, belowName), 0o755)
	for _, dir := range []string{decoy, filepath.Join(decoy, belowName)} {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, decoyName), []byte(decoyName), 0o644))
	}
	return errors.Join(err, os.Symlink(s.targets[0], filepath.Join(s.dir, awayName)))
}

// run swaps until ctx ends, and leaves the decoy in its place.
func (s *swapper) run(ctx context.Context) error {
	swap, away := filepath.Join(s.dir, swapName), filepath.Join(s.dir, awayName)
	const swapsEach = 200 // of one target
	// Faster than anybody looks twice, and slow enough to leave the processors to them.
	ticker := time.NewTicker(50 * time.Microsecond)
	defer ticker.Stop()
	for i := 1; ctx.Err() == nil; i++ {
		for range 2 {
			if err := unix.Renameat2(unix.AT_FDCWD, swap, unix.AT_FDCWD, away, unix.RENAME_EXCHANGE); err != nil {
				return err
			}
			<-ticker.C
		}
		if i%swapsEach != 0 {
			continue
		}
		err := errors.Join(os.Remove(away), os.Symlink(s.targets[i/swapsEach%len(s.targets)], away))
		if err != nil {
			return err
		}
	}
	return nil
}

// swap runs a swapper, and makes a file when the decoy is there.
func swap(ctx context.Context, dir string, targets []string) error {
	s := swapper{dir, targets}
	if err := s.prepare(); err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "ready"), []byte("ready"), 0o644); err != nil {
		return err
	}
	return s.run(ctx)
}

// race attacks by a path that leads to a decoy at one moment and to a place at the next.
// It returns when ctx has ended.
func (a *assault) race(ctx context.Context) report {
	r := report{}
	s := swapper{dir: filepath.Join(a.Scratch, "race")}
	for _, p := range a.Places {
		s.targets = append(s.targets, p.Dir)
	}
	if err := errors.Join(os.RemoveAll(s.dir), os.Mkdir(s.dir, 0o755), s.prepare()); err != nil {
		r.add("swap", "", err)
		return r
	}
	done := make(chan error, 1)
	go func() { done <- s.run(ctx) }()
	dir := filepath.Join(s.dir, swapName)
	for i := 0; i == 0 || ctx.Err() == nil; i++ {
		file := dir + "/" + a.Places[i%len(a.Places)].Name
		a.strikeSwapped(r, dir, file)
	}
	if err := <-done; err != nil {
		r.add("swap", "", err)
	}
	return r
}

// strikeSwapped makes each attack on what is in a swapped directory at that moment. What
// succeeds is known of an open only; of the others the places themselves tell.
func (a *assault) strikeSwapped(r report, dir, file string) {
	err := withFile(file, unix.O_RDWR|unix.O_CREAT, func(fd int) error {
		var st unix.Stat_t
		if err := unix.Fstat(fd, &st); err != nil {
			return err
		}
		for _, p := range a.Places {
			var of unix.Stat_t
			if unix.Stat(filepath.Join(p.Dir, p.Name), &of) == nil && of.Dev == st.Dev {
				return nil
			}
		}
		return errors.New("another file")
	})
	r.add("swap-open", dir, err)
	for _, at := range dirAttacks() {
		r.add("swap-"+at.name, "", at.strike(dir, file))
		_ = os.RemoveAll(dir + "/hostile") // of the decoy
	}
}
