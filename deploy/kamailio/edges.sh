#!/bin/sh
# Under Kubernetes: keeps dispatcher.list the addresses that the name $EDGES has, and has Kamailio
# read it again. Without an answer to the name the list stays as it is.
#   EDGES  EDGE_PORT  EDGE_CALLS: the name, SIP's port, the calls that an edge may have at once
RUN=/run/kamailio
SECONDS_BETWEEN=2
trap 'exit 0' TERM INT
unread=
while :; do
    addresses=$(getent ahostsv4 "$EDGES" | cut -d' ' -f1 | sort -u)
    if [ -n "$addresses" ]; then
        for address in $addresses; do
            echo "1 sip:$address:$EDGE_PORT 0 0 duid=$address;maxload=$EDGE_CALLS"
        done >$RUN/dispatcher.new
        if cmp -s $RUN/dispatcher.new $RUN/dispatcher.list; then
            rm $RUN/dispatcher.new
        else
            mv $RUN/dispatcher.new $RUN/dispatcher.list
            unread=1
        fi
    fi
    if [ -n "$unread" ] && kamcmd -s unix:$RUN/kamailio_ctl dispatcher.reload >/dev/null 2>&1; then
        unread=
        echo "edges: $(echo $addresses)"
    fi
    sleep $SECONDS_BETWEEN &
    wait $!
done
