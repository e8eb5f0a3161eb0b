package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/spf13/cobra"
	"k8s.io/component-base/version"

	"github.com/refvol/refvol/pkg/csi"
	"github.com/refvol/refvol/pkg/manager"
	"github.com/refvol/refvol/pkg/node"
	"github.com/refvol/refvol/pkg/report"
	"github.com/refvol/refvol/pkg/status"
)

// fetchTimeout limits how long status waits for the plugin.
const fetchTimeout = 10 * time.Second

// statusOptions are the flags of status.
type statusOptions struct {
	address, output string
}

func newStatusCommand() *cobra.Command {
	opts := &statusOptions{address: status.DefaultAddress, output: status.OutputTable}
	cmd := &cobra.Command{
		Use:   "status",
		Short: "List the volumes of the plugin that runs here, the worst first",
		Long: `Lists the volumes of the plugin that runs in the same pod (docs/status.md). Before the volumes it names the
rights that the plugin lacks, why it is not ready, and the publishes that failed in the last ten minutes. It
prints no value.

    kubectl -n refvol-system exec POD -- /refvol-plugin status

The exit status is 0 if all is normal, 1 if a volume is abnormal, a publish failed, a right is missing or the plugin is
not ready, and 2 if the plugin does not answer or answers in another format, or the command line is wrong.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			return opts.run(cmd.Context(), cmd.OutOrStdout())
		},
	}
	fs := cmd.Flags()
	fs.StringVar(&opts.address, "status-address", opts.address, "the plugin's own --status-address")
	fs.StringVarP(&opts.output, "output", "o", opts.output, "wide, json or yaml (default: a table)")
	return cmd
}

// run prints the status. It fails if anything is abnormal.
func (o *statusOptions) run(ctx context.Context, stdout io.Writer) error {
	report, err := o.fetch(ctx)
	if err != nil {
		return err
	}
	counts := &status.Counts{Nodes: 1}
	counts.Add(report)
	if err := o.print(stdout, counts, report); err != nil {
		return err
	}
	return counts.Err()
}

func (o *statusOptions) fetch(ctx context.Context) (*status.Report, error) {
	if o.address == "" {
		return nil, errors.New("--status-address: Required value: name the address that the plugin serves at")
	}
	if err := errors.Join(status.ValidateOutput(o.output), validateStatusAddress(o.address)); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, fetchTimeout)
	defer cancel()
	// no proxy: a loopback address belongs to this pod
	report, err := status.Fetch(ctx, &http.Transport{DisableKeepAlives: true}, o.address)
	if err != nil && !errors.Is(err, status.ErrFormat) {
		err = fmt.Errorf("%w: run this in the pod of a plugin whose --status-address is %s; the log of the plugin says where it serves", err, o.address)
	}
	return report, err
}

func (o *statusOptions) print(stdout io.Writer, counts *status.Counts, report *status.Report) error {
	switch o.output {
	case status.OutputJSON, status.OutputYAML:
		return status.Encode(stdout, o.output, report)
	}
	return status.Table{Wide: o.output == status.OutputWide}.Write(stdout, counts, report)
}

// validateStatusAddress returns an error unless the address is a loopback address.
func validateStatusAddress(address string) error {
	return validateLoopback("status-address", address, status.DefaultAddress, "the names of all pods and objects are not for the network")
}

// statusHandler serves the plugin's status.
func statusHandler(opts *serveOptions, n *node.Node, server *csi.Server, ready []condition) http.Handler {
	o := &report.Reporter{
		Driver: opts.driverName, Node: opts.nodeName, Version: version.Get().GitVersion,
		Volumes: n.Volumes.Volumes, Objects: n.Objects.Objects, Refused: server.Refused, MissingRights: n.Rights.Missing,
		NotReady: func() []string { return unmet(ready) }, ResyncInterval: opts.reportedInterval(),
	}
	return status.Handler(o.Collect)
}

// reportedInterval returns the interval in which objects are read again, or 0 if watches report their changes at once.
func (o *serveOptions) reportedInterval() time.Duration {
	if o.changeDetection == string(manager.Watch) {
		return 0
	}
	return o.resyncInterval
}
