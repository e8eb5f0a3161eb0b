package controlplane

import (
	"errors"
	"fmt"

	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
)

// errAttached is why nothing starts or stops the server of another process.
var errAttached = errors.New("this control plane was started elsewhere")

// Attach returns the control plane that a kubeconfig file with all rights leads to, for a
// test that runs on another machine than the control plane. Its API server can't be started
// or stopped, Stop leaves it running, and what is asked of the processes, the port and the
// directory has no answer.
//
// etcd is the address of its etcd, see ServeEtcd.
func Attach(kubeconfig, etcd string) (*ControlPlane, error) {
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err == nil {
		err = rest.LoadTLSFiles(config)
	}
	if err != nil {
		return nil, fmt.Errorf("attach to a control plane: %w", err)
	}
	config.QPS = -1
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return nil, fmt.Errorf("client of the control plane: %w", err)
	}
	c := &ControlPlane{attached: kubeconfig, etcdAddress: etcd, config: config, client: client}
	c.etcdClient = c.newEtcdClient()
	return c, nil
}
