package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/cli-runtime/pkg/genericclioptions"

	"github.com/refvol/refvol/pkg/fleet"
	"github.com/refvol/refvol/pkg/volume"
)

// pausedAnnotation on an object makes every rollout of it stop, whoever runs it.
const pausedAnnotation = volume.RolloutAnnotation + "-paused"

// pausedError says that somebody has paused the rollout of an object.
func (r *roller) pausedError(object fleet.Object) error {
	return &statusError{fmt.Errorf("%s: paused by its annotation %s: the share stays. Run kubectl refvol rollout resume, and then this command again", object, pausedAnnotation), no}
}

// newPauseCommands returns the subcommands of rollout that change annotations once.
func newPauseCommands(flags *genericclioptions.ConfigFlags) []*cobra.Command {
	const objects = " (TYPE/NAME ... | TYPE NAME ...)"
	command := func(name, short, long, example string, change func(*rolloutState) (map[string]*string, string)) *cobra.Command {
		opts := newClusterOptions(flags)
		timeout := time.Minute
		cmd := &cobra.Command{
			Use: name + objects, Short: short, Long: long, Example: example, Args: cobra.MinimumNArgs(1),
			RunE: func(cmd *cobra.Command, args []string) error {
				ctx, cancel := cmd.Context(), func() {}
				if timeout != 0 {
					ctx, cancel = withTimeout(ctx, timeout)
				}
				defer cancel()
				return changeObjects(ctx, opts, timeout == 0, args, cmd.OutOrStdout(), change)
			},
		}
		cmd.Flags().DurationVar(&timeout, "timeout", timeout, "The time to try before giving up. Zero means once, negative means a week.")
		return cmd
	}
	yes := "true"
	return []*cobra.Command{
		command("pause", "Stop every rollout of an object, and leave its share", `The command sets the annotation refvol.dev/rollout-paused. Every running rollout of the object stops
when it next looks at the object, and no other begins. The share stays.`, "  kubectl refvol rollout pause configmap/app-canary -n shop",
			func(*rolloutState) (map[string]*string, string) {
				return map[string]*string{pausedAnnotation: &yes}, "paused"
			}),
		command("resume", "Allow rollouts of an object again", `The command removes the annotation refvol.dev/rollout-paused. It starts no rollout.`,
			"  kubectl refvol rollout resume configmap/app-canary -n shop",
			func(*rolloutState) (map[string]*string, string) {
				return map[string]*string{pausedAnnotation: nil}, "no longer paused"
			}),
		command("abort", "Take a canary object back, or pause a held version", `The command sets a canary object to 0%, so that all pods show the stable values again. It pauses a held
version: write the old values back, and then run rollout --to 100%.`,
			"  kubectl refvol rollout abort configmap/app-canary -n shop",
			func(s *rolloutState) (map[string]*string, string) {
				if !s.isCanary {
					return map[string]*string{pausedAnnotation: &yes}, "paused: to take the change back, write the old values, run kubectl refvol rollout --to 100%, and then resume"
				}
				none := share(0)
				return map[string]*string{volume.CanaryAnnotation: &none}, "taken back: no pod shows the canary"
			}),
	}
}

// changeObjects changes annotations of objects, and says what it did. It tries once, or until ctx ends.
func changeObjects(ctx context.Context, opts *clusterOptions, isOnce bool, args []string, out io.Writer, change func(*rolloutState) (map[string]*string, string)) error {
	c, err := opts.connect()
	if err != nil {
		return err
	}
	objects, err := namedObjects(opts.flags, args)
	if err != nil {
		return err
	}
	for _, object := range objects {
		for {
			text, err := c.annotate(ctx, object, change)
			if err == nil {
				_, err = fmt.Fprintf(out, "%s: %s\n", object, text)
				if err != nil {
					return fmt.Errorf("say what was done: %w", err)
				}
				break
			}
			if isOnce || isAnswer(err) || isFinal(err) || ctx.Err() != nil {
				return err
			}
			pause(ctx, healthPause)
		}
	}
	return nil
}

// annotate changes annotations of an object as change says, and returns its text.
func (c *cluster) annotate(ctx context.Context, object fleet.Object, change func(*rolloutState) (map[string]*string, string)) (string, error) {
	state, err := c.rollout(ctx, object)
	if err != nil {
		return "", err
	}
	if state == nil {
		return "", &statusError{fmt.Errorf("%s does not exist", object), no}
	}
	annotations, text := change(state)
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": state.UID, "annotations": annotations}})
	if err != nil {
		return "", fmt.Errorf("encode the annotations of %s: %w", object, err)
	}
	_, err = c.objects(object).Patch(ctx, object.Name, types.MergePatchType, patch, metav1.PatchOptions{FieldManager: rolloutManager})
	switch {
	case apierrors.IsConflict(err), apierrors.IsNotFound(err): // it was created anew: look again
		return "", fmt.Errorf("%s was replaced meanwhile: %w", object, err)
	case err != nil:
		return "", fmt.Errorf("annotate %s: %w", object, err)
	}
	return text, nil
}
