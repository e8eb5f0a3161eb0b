// Command nodenet is the pod network of the test clusters, small enough to be built
// from this module alone. On its node it keeps a CNI configuration for the node's
// own pod range, a route to the pod range of each other node, a firewall rule that
// masquerades what leaves the pod network, and routing rules that keep it in the
// network of the nodes.
//
// It reads its settings from the environment: NODE_NAME; POD_SUBNET, the range of
// all pods; CONTROL_PLANE_ENDPOINT, host:port of the API server.
package main

import (
	"context"
	"fmt"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/cache"
)

// resync is how soon a step that failed is tried again.
const resync = 10 * time.Second

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	if err := run(ctx); err != nil {
		log.Fatal(err)
	}
}

// run follows the cluster's nodes until ctx ends.
func run(ctx context.Context) error {
	config, err := rest.InClusterConfig()
	if err != nil {
		return fmt.Errorf("read the pod's own credentials: %w", err)
	}
	// The API server's service address works only once kube-proxy does, and that
	// comes up at the same time.
	if endpoint := os.Getenv("CONTROL_PLANE_ENDPOINT"); endpoint != "" {
		config.Host = "https://" + endpoint
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return fmt.Errorf("make a client for %s: %w", config.Host, err)
	}
	if subnet := os.Getenv("POD_SUBNET"); subnet != "" {
		if err := masquerade(ctx, subnet); err != nil {
			return err
		}
		if err := confine(subnet); err != nil {
			return err
		}
	}

	self := os.Getenv("NODE_NAME")
	apply := func(object any) {
		node, ok := object.(*corev1.Node)
		// A new node gets its range a moment after it registers.
		if !ok || node.Spec.PodCIDR == "" {
			return
		}
		if err := connect(node, self); err != nil {
			log.Printf("node %s: %v", node.Name, err)
		}
	}
	factory := informers.NewSharedInformerFactory(client, resync)
	if _, err := factory.Core().V1().Nodes().Informer().AddEventHandler(cache.ResourceEventHandlerFuncs{
		AddFunc:    apply,
		UpdateFunc: func(_, object any) { apply(object) },
	}); err != nil {
		return fmt.Errorf("follow the nodes: %w", err)
	}
	factory.Start(ctx.Done())
	<-ctx.Done()
	factory.Shutdown()
	return nil
}

// connect makes node's pod range reachable: by the CNI configuration when node is
// this one, called self, and by a route when it is another.
func connect(node *corev1.Node, self string) error {
	if node.Name == self {
		return writeConfig(confDir, node.Spec.PodCIDR, mtu("eth0"))
	}
	return addRoute(node)
}
