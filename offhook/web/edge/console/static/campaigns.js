// Campaigns of outgoing calls: how far each is, and what the operator may do with it.

import { campaignReport, campaigns, changeCampaign } from "./api.js";
import { empty, make, say, table } from "./dom.js";
import { badge, keepShowing } from "./states.js";
import { count, shortTime } from "./words.js";

const STATES = { running: "up", paused: "waiting", completed: "none", cancelled: "none" };
/** What may be done in a state: the action, its button, and what is asked before. */
const ACTIONS = {
  running: [["pause", "Pause"], ["cancel", "Cancel", "Nobody else will be called. Calls in progress go on. Cancel"]],
  paused: [["resume", "Resume"], ["cancel", "Cancel", "Nobody else will be called. Cancel"]],
};

const nameOf = (campaign) => campaign.name || campaign.campaign_id;
const inWords = (numbers) => Object.entries(numbers).filter(([, number]) => number)
  .map(([name, number]) => `${count(number)} ${name.replaceAll("_", " ")}`).join(" · ");

function buttons(campaign) {
  return (ACTIONS[campaign.state] ?? []).map(([action, text, question]) => {
    const button = make("button", {
      type: "button", className: action === "cancel" ? "quiet danger" : "quiet",
      ariaLabel: `${text} ${nameOf(campaign)}`, data: { key: `${action} ${campaign.campaign_id}` },
    }, text);
    button.addEventListener("click", async () => {
      if (question && !confirm(`${question} ${nameOf(campaign)}?`)) return;
      button.disabled = true;
      try {
        const { state } = await changeCampaign(campaign.campaign_id, action);
        say(`${nameOf(campaign)} is ${state}`);
        button.closest("tr").querySelector(".badge").textContent = state;
      } catch (error) {
        button.disabled = false;
        alert(error.message);
      }
    });
    return button;
  });
}

function row(campaign, who) {
  const { states, recipients } = campaign;
  const called = recipients - states.waiting - states.dialling;
  return [
    make("span", {}, make("strong", { dir: "auto" }, nameOf(campaign)), make("span", { className: "soft" }, " ", shortTime(campaign.created))),
    badge(STATES[campaign.state], campaign.state),
    make("span", {}, make("progress", { max: recipients, value: called, ariaLabel: `Progress of ${nameOf(campaign)}` }), ` ${count(called)}\u00a0of\u00a0${count(recipients)}`),
    states.dialling ? count(states.dialling) : "",
    inWords({ ...campaign.outcomes, blocked: states.blocked, cancelled: states.cancelled }),
    campaign.next_call ? shortTime(campaign.next_call) : "",
    make("span", { className: "row-actions" }, ...(who === "admin" ? buttons(campaign) : []),
      make("a", { href: campaignReport(campaign.campaign_id), download: "", ariaLabel: `Report of ${nameOf(campaign)} as CSV` }, "Report")),
  ];
}

export function showCampaigns(main, rest, signal, who) {
  return keepShowing(main, "Campaigns", signal, campaigns, ({ campaigns: found }) => {
    if (!found.length) {
      return [empty("No campaigns", "offhook campaigns start FILE calls the numbers of a CSV file, one after the other and within limits.",
        "Their progress is shown here.")];
    }
    const columns = ["Campaign", "State", "Called", "Now", "Outcomes", "Next call", "Actions"];
    return [table("Campaigns", columns, found.map((campaign) => row(campaign, who)))];
  });
}
