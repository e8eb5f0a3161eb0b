package harness

import (
	"context"
	"errors"
	"io"
	"os"
	"path/filepath"

	"github.com/refvol/refvol/e2e/tools/controlplane"
)

// Lab is what plugins are started with: a control plane, the program, and a kubeconfig with the rights of deploy/base and
// no others. Dir is for all that the caller makes.
type Lab struct {
	*controlplane.ControlPlane
	Dir, Plugin, Kubeconfig string
}

// StartLab starts a control plane and builds the plugin, with the race detector in it if race is set. The caller stops
// the Lab.
func StartLab(ctx context.Context, race bool, progress io.Writer) (l *Lab, err error) {
	l = &Lab{}
	defer func() {
		if err != nil {
			err = errors.Join(err, l.Stop())
		}
	}()
	if l.Dir, err = os.MkdirTemp("", "refvol-lab-"); err != nil {
		return l, err
	}
	if l.ControlPlane, err = StartControlPlane(ctx, progress); err != nil {
		return l, err
	}
	if l.Plugin, err = BuildPlugin(ctx, l.Dir, race, progress); err != nil {
		return l, err
	}
	l.Kubeconfig = filepath.Join(l.Dir, "plugin.kubeconfig")
	_, err = GrantPlugin(ctx, l.ControlPlane, l.Kubeconfig)
	return l, err
}

// Stop ends the control plane and removes the directory.
func (l *Lab) Stop() error {
	var err error
	if l.ControlPlane != nil {
		err = l.ControlPlane.Stop()
	}
	return errors.Join(err, os.RemoveAll(l.Dir))
}
