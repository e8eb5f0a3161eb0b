// Command run runs the end-to-end tier: it gets a Kubernetes cluster, installs the
// plugin in it as a user would, runs the suite, and leaves the machine as it was.
//
// Its arguments go to the suite's test binary, for example -test.run=TestParity. The
// environment says the rest:
//
//	KIND_NODE_IMAGE  the node image for kind. Empty: the image that kind itself
//	                 would take where its registry answers, else one that is built
//	                 here from Go modules and Debian packages.
//	K8S              the minor version of the node image that is built here, as 1.35;
//	                 default the newest. e2e/node-image/kubernetes/versions has the others.
//	KUBELET_SYNC     how often kubelets sync pods, and with them their own volumes;
//	                 default 20s, where Kubernetes' is 1m.
//	KEEP=1           keep the cluster and print how to use it.
//	LOAD_IMAGE       a command that gets the path of an image archive as its last
//	                 argument and loads it into the nodes of the cluster that
//	                 KUBECONFIG names. With both set no cluster is made or deleted,
//	                 and the plugin stays installed in that one. The tests that
//	                 restart nodes need these to be containers of the engine that
//	                 DOCKER_HOST names.
//	IMAGE            the plugin's image in a registry, in place of LOAD_IMAGE: the
//	                 cluster that KUBECONFIG names pulls it. Nothing is loaded, and the
//	                 tests that need the nodes are left out and listed at the end.
//	PROBE_IMAGE      with IMAGE, the image of the tests' pods, which make probe-image
//	                 packs; default probe:e2e beside IMAGE.
//	REFVOL_CACHE     what is kept between runs; default ~/.cache/refvol.
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
