// Command refvol-notify makes an application pick up changes of its files. It watches volumes. After a change it restarts the pod's
// containers in place, signals a process, or calls a URL of the pod.
//
// It runs in a container beside the application, without special rights. It never opens a file in a volume that it watches with --dir:
// inode numbers, sizes and times show what differs. So it leaves no receipt for a file that the application has not opened, and needs no
// right to read the files.
//
// It must not know about refvol: it imports no package of this repository, and works on any directory with the kubelet's layout.
package main

import (
	"cmp"
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"syscall"
)

// The exit statuses. --exit-code must be another one, so that a failure of this program does not restart the other containers.
const (
	statusFailed = 1
	statusUsage  = 2 // a Go program that panics has the same status
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	status := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(status)
}

// run is the program without its process. It returns the exit status.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) > 0 && args[0] == "wait" {
		err := waitUntilReady(ctx, args[1:], stdout)
		return exitStatus(context.WithoutCancel(ctx), err, stderr) // if it is ended before, that is no success
	}
	return exitStatus(ctx, watchAndAct(ctx, args, stdout, stderr), stderr)
}

func exitStatus(ctx context.Context, err error, stderr io.Writer) int {
	var usage *usageError
	var end *exitError
	switch {
	case errors.As(err, &end): // first, because the restart has been recorded
		return end.code
	case err == nil || errors.Is(err, flag.ErrHelp) || ctx.Err() != nil:
		return 0
	}
	_, _ = fmt.Fprintln(stderr, "refvol-notify:", err)
	if errors.As(err, &usage) {
		return statusUsage
	}
	return statusFailed
}

func watchAndAct(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	o, err := parse(args, stdout)
	if err != nil {
		return err
	}
	if o.signal != 0 && os.Getpid() == 1 {
		return errAlone
	}
	log := slog.New(slog.NewTextHandler(stderr, nil))
	wake := make(chan struct{}, 1)
	m := &monitor{wake: wake}
	stop, err := m.serve(o)
	if err != nil {
		return err
	}
	w := newWatcher(wake, log)
	err = newNotifier(o, log, m, w).run(ctx)
	w.close()
	stop()
	var end *exitError
	if errors.As(err, &end) { // at the very end: a process that was killed before has not restarted anything
		err = cmp.Or(m.restart(), err)
	}
	return err
}

// exitError asks to end this process with a code that the pod's restartPolicyRules name.
type exitError struct{ code int }

func (e *exitError) Error() string { return fmt.Sprintf("exit with code %d", e.code) }
