// Command run runs the end-to-end tier: it makes a kind cluster, installs the plugin in it as a
// user would, runs the suite, and leaves the machine as it was.
//
// Its arguments go to the suite's test binary, for example -test.run=TestParity. The
// environment says the rest:
//
//	K8S           the minor version of Kubernetes, as 1.35, of a node image that is built here.
//	              e2e/node-image/kubernetes/versions has those that can be named. Empty: kind's
//	              usual image where its registry answers, else the newest that is built here.
//	KUBELET_SYNC  how often kubelets sync pods, and with them their own volumes; default 20s,
//	              where Kubernetes' is 1m.
//	KEEP=1        keep the cluster and print how to use it.
//	REFVOL_CACHE  what is kept between runs; default ~/.cache/refvol.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	defer stop()
	settings, err := readSettings(os.Getenv, os.Args[1:])
	if err == nil {
		err = run(ctx, settings)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		os.Exit(1)
	}
}
