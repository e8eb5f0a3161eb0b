package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"

	"github.com/refvol/refvol/e2e/tools/controlplane"
	"github.com/refvol/refvol/e2e/tools/harness"
)

// Where a machine has what the tests of the plugin need.
const (
	pluginFile     = "refvol-plugin"
	kubeconfigFile = "kubeconfig"
)

// startServer starts a control plane for a machine and adds what its tests need to the
// archive, and to their environment.
func (r *runner) startServer(ctx context.Context, a initramfs) (_ *controlplane.ControlPlane, env string, err error) {
	if r.plugin == "" {
		if r.plugin, err = harness.BuildPlugin(ctx, r.work, false, os.Stdout); err != nil {
			return nil, "", err
		}
	}
	c, err := harness.StartControlPlane(ctx, os.Stdout)
	if err != nil {
		return nil, "", err
	}
	kubeconfig := filepath.Join(r.work, kubeconfigFile)
	err = writeKubeconfig(kubeconfig, c)
	for name, source := range map[string]string{
		pluginFile:     r.plugin,
		kubeconfigFile: kubeconfig,
		// Tests know the checkout by the first, and grant the plugin the rights in the second.
		"checkout/go.mod":                filepath.Join(r.root, "go.mod"),
		"checkout/deploy/base/rbac.yaml": filepath.Join(r.root, "deploy", "base", "rbac.yaml"),
	} {
		err = errors.Join(err, a.addFile(name, source))
	}
	port, etcdErr := c.ServeEtcd()
	if err := errors.Join(err, etcdErr); err != nil {
		return nil, "", errors.Join(err, c.Stop())
	}
	variables := fmt.Sprintf("%s=/%s %s=/%s %s=10.0.2.2:%d %s=1 ", harness.KubeconfigVariable, kubeconfigFile, harness.PluginVariable, pluginFile, harness.EtcdVariable, port, harness.EmulatedVariable)
	return c, variables, nil
}

// writeKubeconfig writes a kubeconfig file with all rights, for a machine: QEMU leads one of
// its addresses to this machine's loopback, which the server's certificate is for.
func writeKubeconfig(path string, c *controlplane.ControlPlane) error {
	config, err := clientcmd.LoadFromFile(c.Kubeconfig())
	if err != nil {
		return err
	}
	for _, cluster := range config.Clusters {
		cluster.Server, cluster.TLSServerName = fmt.Sprintf("https://10.0.2.2:%d", c.Port()), "127.0.0.1"
	}
	return clientcmd.WriteToFile(*config, path)
}
