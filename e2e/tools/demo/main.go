// Command demo shows refvol's main job on this machine: a ConfigMap and a Secret
// become live files, on a real API server and through the plugin's real binary,
// with the demo in the place of a kubelet. Everything that it says it verifies; it
// ends with status 0 only if all of it was so.
//
// It needs no cluster, no container engine, and no root where the kernel lets users
// make user namespaces. With KEEP=1 in the environment it leaves everything running
// until Ctrl-C, for a look by hand.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/refvol/refvol/internal/sandbox"
)

func main() {
	err := sandbox.Check()
	if err == nil {
		err = run()
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "FAIL:", err)
		os.Exit(1)
	}
}

func run() (err error) {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	d := newDemo(os.Stdout, os.Getenv("KEEP") == "1")
	// What is running is stopped with its own time, also after a Ctrl-C.
	defer func() { err = errors.Join(err, d.stop()) }()
	return d.run(ctx)
}
