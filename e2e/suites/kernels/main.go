// Command kernels boots Debian's packaged kernels in QEMU, without KVM, and runs tests on
// each: those of pkg/mount, pkg/writer and pkg/receipts, and the plugin itself against an API server on
// this machine, by tests of the suites crash, limits, receipts and seen. It prints each failure and a table, and fails
// if anything failed.
//
//	kernels [-short] [KERNEL...]
//
// A kernel is one of 5.10, 6.1, 6.12 and newest; without any, all are run, and with -short
// the smallest part of 6.1. What comes from Debian, and each machine's console, is kept in kernels below
// ~/.cache/refvol (REFVOL_CACHE).
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	short := flag.Bool("short", false, "run the short form on 6.1 only")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	plan, err := choose(flag.Args(), *short)
	if err == nil {
		err = run(ctx, plan)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "kernels:", err)
		os.Exit(1)
	}
}
